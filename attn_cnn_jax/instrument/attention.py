"""Attention of any network: as arrays over its grid of patches, watched, and with heads replaced by convolutions.

A head is replaced by its best K x K kernel of attention; values and output maps stay, and so does what a query gives to
class and register tokens. The kernel is the better, by squared error, of two: the attention by shift within K x K,
renormalised inside the grid; and the attention on each shift, mean over interior queries, with the outermost patches
repeated beyond the border, as sharp heads have it.
"""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.instrument.adapters import CLOSE, Product, Replace, Watched
from attn_cnn_jax.instrument.adapters import nnx as nnx_adapter
from attn_cnn_jax.instrument.anatomy import by_place
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.runs.weights import read_arrays
from attn_cnn_jax.theorem.to_convolution import convolved, kernel_axis, shift_weights

LAYOUT = "(layers, images, heads, q, k), or one array (images, heads, q, k) per layer"
POINTS = 12  # of the cumulative curve, at most
SEEN = (
    "this package's networks by their layers, Flax NNX ones where they have nnx.MultiHeadAttention, PyTorch ones where "
    "they call scaled_dot_product_attention, nn.MultiheadAttention or a product of a softmax with values"
)


def as_layers(attention: Any) -> list[Float[np.ndarray, "b h n n"]]:
    """Returns attention of NumPy, JAX or PyTorch as one array per layer; UserError unless it is `LAYOUT`."""
    arrays = (layer.detach().float().cpu() if hasattr(layer, "detach") else layer for layer in attention)
    layers = [np.asarray(layer, np.float32) for layer in arrays]
    for number, layer in enumerate(layers, 1):
        valid = layer.ndim == 4 and layer.shape[-1] == layer.shape[-2] and layer.size > 0
        if not valid or layer.min() < 0 or not np.allclose(layer.sum(axis=-1), 1, atol=CLOSE):
            what = "with as many queries q as keys k and rows that sum to 1, as they do after the softmax"
            raise UserError(f"attention of layer {number}, of shape {layer.shape}: expected is {LAYOUT}, {what}")
    if len(counts := {len(layer) for layer in layers}) != 1:
        raise UserError(f"layers of {sorted(counts)} images or windows: windowed attention (Swin) is not supported")
    return layers


def read(path: Path) -> list[Float[np.ndarray, "b h n n"]]:
    """Returns attention from .npz or .safetensors: one array of all layers, or one per layer in the order of names."""
    try:
        if path.suffix == ".safetensors":
            arrays = read_arrays(path)[1]
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {shortened(error)}; expected is .npz or .safetensors") from error
    layers = [arrays[name] for name in sorted(arrays, key=lambda name: (len(name), name))]
    return as_layers(layers[0] if len(layers) == 1 else layers)


def over_patches(
    layers: Sequence[Float[np.ndarray, "b _h _n _n"]], grid: Grid | None, prefix: int | None
) -> tuple[Grid, list[Float[np.ndarray, "b _h _p _p"]], list[Float[np.ndarray, " _h"]]]:
    """Returns rows and columns of patches; by layer attention between them, renormalised; and the prefix's share of it.

    A query with all of its attention on the prefix counts as uniform over patches. UserError where the numbers of
    tokens do not agree with grid (None for a square) and prefix (None for what the grid leaves; layers may lack it).
    """
    tokens = sorted({layer.shape[-1] for layer in layers})
    side = math.isqrt(max(0, tokens[0] if prefix is None else tokens[-1] - prefix))
    grid = grid or (side, side)
    patches = math.prod(grid)
    before = {count - patches for count in tokens}
    if min(before) < 0 or (prefix is not None and (max(before) != prefix or not before <= {0, prefix})):
        raise UserError(
            f"attention over {', '.join(map(str, tokens))} tokens is not over a grid of {grid[0]}x{grid[1]} patches "
            f"after a prefix of {'any number' if prefix is None else prefix}: give grid=(rows, columns) and prefix="
        )
    between, shares = [], []
    for layer in layers:
        part = layer[:, :, -patches:, -patches:].astype(np.float64)
        kept = part.sum(axis=-1, keepdims=True)
        between.append(np.divide(part, kept, out=np.full_like(part, 1 / patches), where=kept > 1e-9))
        shares.append((1 - kept.mean(axis=(0, 2, 3))).clip(0) * (layer.shape[-1] > patches))
    return grid, between, shares


def watch(model: Any, images: Any, replace: Replace | None = None) -> Watched:
    """Runs a network in evaluation mode with the adapter for its library; UserError where it sees no attention.

    It is a run of this package, a Flax NNX or a PyTorch module; `replace` gives attention in place of a layer's own.
    """
    if isinstance(model, Run):
        model, images = model.model, model.normalised(images)
    if isinstance(model, nnx.Module):
        output, layers = nnx_adapter.watch(model, images, replace)
    elif hasattr(model, "state_dict") and hasattr(model, "modules"):
        from attn_cnn_jax.instrument.adapters import torch as torch_adapter  # imports PyTorch, which the user has

        output, layers = torch_adapter.watch(model, images, replace)
    else:
        output, layers = np.zeros((0, 0)), []
    if not layers:
        raise UserError(f"no attention was found in {type(model).__name__}: it is seen in {SEEN}")
    return output, layers


def best_kernel(
    mean: Float[np.ndarray, "h q p"], profile: Float[np.ndarray, "h r s"], grid: Grid, kernel_size: int
) -> Float[np.ndarray, "h q p"]:
    """Returns what each query takes of each key by the best kernel for a head's mean attention and its profile."""
    rows, columns = (np.isin(np.arange(-size + 1, size), kernel_axis(kernel_size)) for size in grid)
    with np.errstate(invalid="ignore", divide="ignore"):
        renormalised = np.nan_to_num(by_place(np.where(rows[:, None] & columns, profile, 0), grid))
    weights = shift_weights(jnp.asarray(mean.reshape(-1, *grid, *grid), jnp.float32), kernel_size)
    repeated = np.asarray(convolved(weights, grid, "edge"), np.float64).reshape(mean.shape)
    errors = [np.square(kernel - mean).sum(axis=(1, 2), keepdims=True) for kernel in (renormalised, repeated)]
    return np.where(errors[0] <= errors[1], renormalised, repeated)


def put(
    attention: Float[np.ndarray, "b h n n"], kernels: Float[np.ndarray, "h q p"], heads: list[int] | slice
) -> Float[np.ndarray, "b h n n"]:
    """Returns attention with some heads' attention between patches replaced by kernels."""
    attention, first = attention.copy(), attention.shape[-1] - kernels.shape[-1]
    kept = attention[:, heads, first:, first:].sum(axis=-1, keepdims=True)
    attention[:, heads, first:, first:] = kept * kernels[heads]
    return attention


def replace_heads(
    model: Any, images: Any, watched: Watched, kernels: Sequence[np.ndarray], kernel_size: int, labels: Any = None
) -> tuple[list[Float[np.ndarray, " _h"]], list[dict[str, float]]]:
    """Replaces heads of a network, cheapest first; the user's object stays as it is.

    `watched` is what it computed of the images, see `watch`, `kernels` what `best_kernel` gives for every layer, labels
    are the images' classes. Returns `output_change` and `replaced` of a report, relative changes in the Euclidean norm.
    """
    own, layers = watched
    changes = [changed(layer, of_layer) for layer, of_layer in zip(layers, kernels, strict=True)]
    heads = [(n, head) for n, change in enumerate(changes) for head in range(len(change))]
    heads.sort(key=lambda which: changes[which[0]][which[1]])
    classes = own.argmax(axis=1) if labels is None else np.asarray(labels)
    # Multiply-adds of one head, of scores and of averages; a convolution has averages over K^2 keys, and no scores.
    keys, rows = [layer.attention.shape[-1] for layer in layers], []
    work = [2 * n * layer.values[0, 0].size for n, layer in zip(keys, layers, strict=True)]
    saved = [max(0, of_head * (1 - kernel_size**2 / (2 * n))) for n, of_head in zip(keys, work, strict=True)]
    for count in sorted({round(count) for count in np.linspace(0, len(heads), min(POINTS, len(heads) + 1))}):
        chosen = [[head for layer, head in heads[:count] if layer == n] for n in range(len(kernels))]
        output, _ = watch(model, images, lambda n, given, chosen=chosen: put(given, kernels[n], chosen[n]))
        change = float(np.abs(output - own).max() / max(np.abs(own).max(), 1e-30))
        costs = {"logits": change, "accuracy": float((output.argmax(axis=1) == classes).mean())}
        share = sum(saved[n] for n, _ in heads[:count]) / sum(work[n] for n, _ in heads)
        rows.append({"heads": count} | costs | {"saved": share})
    return changes, rows


def changed(layer: Product, kernels: Float[np.ndarray, "h q p"]) -> Float[np.ndarray, " h"]:
    """Returns the relative change of each head's averages, over patches and images."""
    first = layer.attention.shape[-1] - kernels.shape[-1]
    own, given = (
        (attention[:, :, first:] @ layer.values).astype(np.float64)
        for attention in (layer.attention, put(layer.attention, kernels, slice(None)))
    )
    squares = np.square(own).sum(axis=(0, 2, 3))
    return np.sqrt(np.square(given - own).sum(axis=(0, 2, 3)) / np.maximum(squares, 1e-30))
