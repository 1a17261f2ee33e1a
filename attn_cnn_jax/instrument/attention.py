"""Attention that somebody saved: arrays, and what is known about their tokens."""

import contextlib
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.instrument.adapters import HALF, numbers
from attn_cnn_jax.instrument.layout import Layout, given
from attn_cnn_jax.runs.weights import read_arrays

LAYOUT = "(layers, images, heads, q, k), or one array (images, heads, q, k) per layer"


def as_layers(attention: Any) -> list[Float[np.ndarray, "b h n n"]]:
    """Returns attention of NumPy, JAX or PyTorch as one array per layer; UserError unless it is `LAYOUT`."""
    layers = [numbers(layer) for layer in attention]
    for number, layer in enumerate(layers, 1):
        valid = layer.ndim == 4 and layer.shape[-1] == layer.shape[-2] and layer.size > 0
        if not valid or layer.min() < 0 or not np.allclose(layer.sum(axis=-1), 1, atol=HALF):
            what = "with as many queries q as keys k and rows that sum to 1, as they do after the softmax"
            raise UserError(f"attention of layer {number}, of shape {layer.shape}: expected is {LAYOUT}, {what}")
    if len(counts := {len(layer) for layer in layers}) != 1:
        raise UserError(f"layers of {sorted(counts)} images or windows: windowed attention (Swin) is not supported")
    return layers


def read(path: Path) -> list[Float[np.ndarray, "b h n n"]]:
    """Returns attention from .npz, .npy or .safetensors: one array, or one per layer in the order of names."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: expected is attention in a file; `attn-cnn heads` measures runs")
    try:
        if path.suffix == ".safetensors":
            arrays = read_arrays(path)[1]
        else:
            file = np.load(path, allow_pickle=False)
            with contextlib.nullcontext({"attention": file}) if isinstance(file, np.ndarray) else file as file:
                arrays = dict(file)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        # NumPy takes any other file for pickled objects, and advises to load them.
        why = "it holds no arrays" if "pickle" in str(error) else shortened(error)
        raise UserError(f"{path} cannot be read: {why}; expected is .npz, .npy or .safetensors") from error
    layers = [arrays[name] for name in sorted(arrays, key=lambda name: (len(name), name))]
    return as_layers(layers[0] if len(layers) == 1 else layers)


def layouts(
    layers: list[Float[np.ndarray, "b _h _n _n"]], grid: Grid | None, prefix: int | None, tokens: Any
) -> list[Layout]:
    """Returns where the patches are among the tokens of every layer.

    They are `tokens`, in the order of rows; or those after `prefix` others, None for what the grid leaves; layers may
    lack these. The grid is a square where none is given, and all tokens, or all but a class token, make one. UserError
    where the numbers do not agree, or another grid fits as well.
    """
    counts = sorted({layer.shape[-1] for layer in layers})
    whole = ", ".join(map(str, counts))
    if grid is None:
        left = (counts[0], counts[0] - 1) if prefix is None else (counts[-1] - prefix,)
        left = left if tokens is None else (len(np.ravel(tokens)),)
        side = next((math.isqrt(n) for n in left if n > 1 and math.isqrt(n) ** 2 == n), None)
        if side is None:
            after = "" if prefix is None else f" after a prefix of {prefix}"
            raise UserError(f"attention over {whole} tokens{after}: give grid=(rows, columns), and prefix= or tokens=")
        grid = side, side
    patches = math.prod(grid)
    if tokens is not None:
        return [given(grid, tokens, layer.shape[-1]) for layer in layers]
    before = {count - patches for count in counts}
    if min(before) < 0 or (prefix is not None and (max(before) != prefix or not before <= {0, prefix})):
        raise UserError(
            f"attention over {whole} tokens is not over a grid of {grid[0]}x{grid[1]} patches "
            f"after a prefix of {'any number' if prefix is None else prefix}: give grid=(rows, columns) and prefix="
        )
    if len(before - {0}) > 1:
        raise UserError(f"attention over {whole} tokens has no one grid of patches: inspect layers of one size at once")
    return [given(grid, np.arange(layer.shape[-1] - patches, layer.shape[-1]), layer.shape[-1]) for layer in layers]
