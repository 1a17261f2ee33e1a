"""Attention of any network as arrays over its grid of patches: class and register tokens are taken out."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.watch import CLOSE

LAYOUT = "(layers, images, heads, q, k), or one array (images, heads, q, k) per layer"


def as_layers(attention: Any) -> list[Float[np.ndarray, "b h n n"]]:
    """Returns attention as one array per layer; UserError unless it is attention over tokens.

    Args:
      attention: NumPy, JAX or PyTorch arrays, in one of the layouts of `LAYOUT`.
    """
    whole = hasattr(attention, "shape")
    layers = [as_numpy(layer) for layer in attention]
    for number, layer in enumerate(layers, 1):
        name = f"attention of layer {number}"
        if layer.ndim != 4 or layer.shape[-1] != layer.shape[-2] or not layer.size:
            shape = (len(layers), *layer.shape) if whole else layer.shape
            raise UserError(f"{name}: shape {shape}; expected is {LAYOUT}, with as many queries q as keys k")
        sums = layer.sum(axis=-1)
        if not (layer >= 0).all() or not np.allclose(sums, 1, atol=CLOSE):
            raise UserError(
                f"{name}: rows sum to {sums.min():.4g} to {sums.max():.4g}; give attention after the softmax"
            )
    if not layers:
        raise UserError(f"no attention: expected is {LAYOUT}")
    if len({len(layer) for layer in layers}) > 1:
        raise UserError(f"layers of {sorted({len(layer) for layer in layers})} images: expected is one number")
    return layers


def as_numpy(array: Any) -> np.ndarray:
    """Returns an array of NumPy, JAX or PyTorch, on any device, as NumPy's float32."""
    if hasattr(array, "detach"):
        array = array.detach().float().cpu()
    return np.asarray(array, np.float32)


def read(path: Path) -> list[Float[np.ndarray, "b h n n"]]:
    """Returns the attention in a file: one array of all layers, or one per layer in the order of their names.

    Args:
      path: `.npz` or `.safetensors`.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            arrays = load_file(path)
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {error}; expected is .npz or .safetensors") from error
    if len(arrays) == 1:
        return as_layers(next(iter(arrays.values())))
    return as_layers([arrays[name] for name in sorted(arrays, key=lambda name: (len(name), name))])


def find_grid(tokens: Sequence[int], grid: Grid | None, prefix: int | None) -> Grid:
    """Returns rows and columns of patches; UserError where the numbers of tokens do not agree with them.

    Args:
      tokens: of every layer; layers may differ in their prefix alone.
      grid: None for a square.
      prefix: tokens before the patches, in the layers that have any; None for what the grid leaves.
    """
    fewest = min(tokens)
    if grid is None:
        side = math.isqrt(fewest - (prefix or 0 if len(set(tokens)) == 1 else 0))
        grid = side, side
    patches = math.prod(grid)
    allowed = {0, prefix} if len(set(tokens)) > 1 else {prefix}
    if patches > fewest or (prefix is not None and any(count - patches not in allowed for count in tokens)):
        found = ", ".join(map(str, sorted(set(tokens))))
        raise UserError(
            f"attention over {found} tokens is not over a grid of {grid[0]}x{grid[1]} patches after a prefix of "
            f"{'any number' if prefix is None else prefix}: give grid=(rows, columns) and prefix="
        )
    return grid


def patches(
    layer: Float[np.ndarray, "b h n n"], grid: Grid
) -> tuple[Float[np.ndarray, "b h q p"], Float[np.ndarray, " h"]]:
    """Returns attention between patches, renormalised, and the share of each head that the prefix had.

    A query with all of its attention on the prefix counts as uniform over patches.
    """
    first = layer.shape[-1] - math.prod(grid)
    between = layer[:, :, first:, first:].astype(np.float64)
    kept = between.sum(axis=-1, keepdims=True)
    uniform = 1 / math.prod(grid)
    renormalised = np.divide(between, kept, out=np.full_like(between, uniform), where=kept > 1e-9)
    return renormalised, 1 - kept.mean(axis=(0, 2, 3))
