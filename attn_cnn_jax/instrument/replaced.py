"""Heads replaced by their best K x K kernel of attention: what that changes, and what it saves.

Values and output maps stay. The kernel of a head is the better, by squared error, of two: the attention by shift within
K x K, renormalised inside the grid; and the attention on each shift, mean over interior queries, with the outermost
patches repeated beyond the border, as sharp heads have it. What a query gives to prefix tokens stays as it is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.analysis.anatomy import by_place
from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.instrument.networks import watch
from attn_cnn_jax.interop.watch import Product, Watched
from attn_cnn_jax.theorem.to_convolution import convolved, kernel_axis, shift_weights

POINTS = 12  # of the cumulative curve, at most


class Replaced(NamedTuple):
    """What replacing heads costs.

    Attributes:
      kernel_size: K.
      change: by layer `(h,)`, of a head's averages of values, relative in the Euclidean norm, on the given images.
      counts: numbers of heads replaced, cheapest first, at which the network was run.
      logits: at each, largest change of a logit, relative to the largest logit.
      accuracy: at each, share of images with the right class, or without labels with the network's own class.
      saved: at each, share of the multiply-adds of scores and averages that a convolution saves.
    """

    kernel_size: int
    change: list[Float[np.ndarray, " h"]]
    counts: list[int]
    logits: list[float]
    accuracy: list[float]
    saved: list[float]


def best_kernel(
    mean: Float[np.ndarray, "h q p"], profile: Float[np.ndarray, "h r s"], grid: Grid, kernel_size: int
) -> Float[np.ndarray, "h q p"]:
    """Returns what each query takes of each key by the best kernel for a head's mean attention and its profile."""
    height, width = grid
    rows, columns = (np.isin(np.arange(-size + 1, size), kernel_axis(kernel_size)) for size in grid)
    windowed = np.where(rows[:, None] & columns[None], profile, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        renormalised = np.nan_to_num(by_place(windowed, grid))
    weights = shift_weights(jnp.asarray(mean.reshape(-1, height, width, height, width), jnp.float32), kernel_size)
    repeated = np.asarray(convolved(weights, grid, "edge"), np.float64).reshape(mean.shape)
    errors = [np.square(kernel - mean).sum(axis=(1, 2)) for kernel in (renormalised, repeated)]
    return np.where((errors[0] <= errors[1])[:, None, None], renormalised, repeated)


def put(
    attention: Float[np.ndarray, "b h n n"], kernels: Float[np.ndarray, "h q p"], heads: Sequence[int]
) -> Float[np.ndarray, "b h n n"]:
    """Returns attention with some heads' attention between patches replaced by kernels."""
    attention, first = attention.copy(), attention.shape[-1] - kernels.shape[-1]
    for head in heads:
        kept = attention[:, head, first:, first:].sum(axis=-1, keepdims=True)
        attention[:, head, first:, first:] = kept * kernels[head]
    return attention


def measure(
    model: Any,
    images: Any,
    watched: Watched,
    kernels: Sequence[Float[np.ndarray, "h q p"]],
    kernel_size: int,
    labels: Int[np.ndarray, " b"] | None = None,
) -> Replaced:
    """Replaces heads of a network, cheapest first; see `Replaced`.

    Args:
      model: the network; the user's object stays as it is.
      images: as it takes them.
      watched: what it computed of them.
      kernels: of every layer, from `best_kernel`.
      kernel_size: K.
      labels: classes of the images.
    """
    changes = list(map(changed, watched.layers, kernels))
    heads = [(layer, head) for layer, change in enumerate(changes) for head in range(len(change))]
    heads.sort(key=lambda which: changes[which[0]][which[1]])
    own = watched.output
    classes = own.argmax(axis=1) if labels is None else np.asarray(labels)
    counts = sorted({round(count) for count in np.linspace(0, len(heads), min(POINTS, len(heads) + 1))})
    logits, accuracy = [], []
    for count in counts:
        chosen = [[head for layer, head in heads[:count] if layer == n] for n in range(len(kernels))]
        output = watch(model, images, lambda n, given, chosen=chosen: put(given, kernels[n], chosen[n])).output
        logits.append(float(np.abs(output - own).max() / max(np.abs(own).max(), 1e-30)))
        accuracy.append(float((output.argmax(axis=1) == classes).mean()))
    whole = [work(layer.attention.shape[-1], layer) for layer in watched.layers]
    less = [max(0, part - work(kernel_size**2, layer) / 2) for part, layer in zip(whole, watched.layers, strict=True)]
    total = sum(part * len(change) for part, change in zip(whole, changes, strict=True))
    saved = [sum(less[layer] for layer, _ in heads[:count]) / total for count in counts]
    return Replaced(kernel_size, changes, counts, logits, accuracy, saved)


def changed(layer: Product, kernels: Float[np.ndarray, "h q p"]) -> Float[np.ndarray, " h"]:
    """Returns the relative change of each head's averages, over patches and images."""
    first = layer.attention.shape[-1] - kernels.shape[-1]
    own = layer.attention[:, :, first:] @ layer.values
    given = put(layer.attention, kernels, range(len(kernels)))[:, :, first:] @ layer.values
    squares = [np.square(array.astype(np.float64)).sum(axis=(0, 2, 3)) for array in (given - own, own)]
    return np.sqrt(squares[0] / np.maximum(squares[1], 1e-30))


def work(keys: int, layer: Product) -> float:
    """Returns multiply-adds of one head's scores and averages for one image, with so many keys per query.

    A convolution has no scores: half of this.
    """
    return 2.0 * layer.attention.shape[-2] * keys * layer.values.shape[-1]
