"""What one layer of attention is like: all its measures, made while the network runs, so that no map has to be kept."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attn_cnn_jax.analysis.heads import Statistics, grid_shifts, layer_statistics
from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.instrument import kernels
from attn_cnn_jax.instrument.anatomy import Anatomy, anatomy, inner
from attn_cnn_jax.instrument.layout import Layout


class Layer(NamedTuple):
    """Measures of one layer's heads, `(h,)` each unless it is said otherwise; see `Report`."""

    number: int  # among all softmaxes of the network, from 0
    layout: Layout
    keys: Bool[np.ndarray, "w q p"] | None  # which of them each query has, by window; None for all
    attention: Float[np.ndarray, "n h q p"]  # float32, of the images that are kept
    anatomy: Anatomy
    statistics: Statistics
    prefix_share: Float[np.ndarray, " h"]
    key_alone: Float[np.ndarray, " h"]
    shift: kernels.Shift
    within: Float[np.ndarray, " h"]
    kernel_errors: dict[int, Float[np.ndarray, " h"]]
    mean_heads: Float[np.ndarray, "n t t"]  # over all tokens, of the images that are kept
    class_token: Float[np.ndarray, "n h p"] | None  # attention of the first other token to patches; None without one
    position_alone: Float[np.ndarray, " h"] | None = None
    output_change: Float[np.ndarray, " h"] | None = None
    difference: float | None = None

    @property
    def grid(self) -> Grid:
        return self.layout.grid

    def kernel(self, kernel_size: int) -> tuple[Float[np.ndarray, "w h q p"], kernels.Filters]:
        """The best K x K kernel of every head, as attention and as weights."""
        return kernels.best_kernel(self.anatomy.mean, self.anatomy.profile, self.grid, kernel_size, self.keys)

    def instead(self, name: str, kernel_size: int) -> Float[np.ndarray, "w h q p"]:
        """What takes the place of attention: one of `kernels.INSTEAD`."""
        if name == "kernel":
            return self.kernel(kernel_size)[0]
        mean = self.anatomy.mean
        if name == "mean":
            return mean
        allowed = np.ones(mean.shape) if self.keys is None else np.broadcast_to(self.keys[:, None], mean.shape)
        return allowed / allowed.sum(axis=-1, keepdims=True)


def between(attention: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Returns attention between patches in the order of rows, renormalised, `(n, h, p, p)`, and what patches had.

    A query with all of its attention on other tokens counts as uniform over patches.
    """
    part = attention[:, :, *patches_of(layout)]
    kept = part @ np.ones((part.shape[-1], 1), part.dtype)
    few = kept <= 1e-9
    part = part / np.where(few, 1, kept)
    if few.any():
        part[np.broadcast_to(few, part.shape)] = 1 / part.shape[-1]
    return part, kept


def patches_of(layout: Layout) -> tuple[Any, Any]:
    """Returns what picks patches by row and by column of attention over all tokens; windows have patches alone."""
    tokens = layout.tokens[0]
    together = (np.diff(tokens) == 1).all()
    whole = slice(tokens[0], tokens[-1] + 1)
    return (whole, whole) if together else (tokens[:, None], tokens)


def measure(
    number: int,
    layout: Layout,
    attention: np.ndarray,
    sizes: Sequence[int],
    keep: int,
    groups: Any = None,
    values: tuple[np.ndarray, np.ndarray] | None = None,
) -> Layer:
    """Measures attention over all tokens `(n, h, q, p)`, images (times windows) first; keeps maps of `keep` images.

    `values` are those of keys, and their averages.
    """
    part, kept = between(attention, layout)
    grid, windows, pixels = layout.grid, layout.windows, math.prod(layout.grid)
    keys = None
    if (layout.region != layout.region[:, :1]).any():  # whether the network masks other parts is seen in the mean
        alike = layout.region[:, :, None] == layout.region[:, None]
        mean = part.reshape(-1, windows, *part.shape[1:]).mean(axis=0)
        keys = alike if np.where(alike[:, None], 0, mean).max() < 1e-6 else None
    found = anatomy(part, grid, windows=windows, keys=keys, groups=groups)
    mean = found.mean
    errors, change = {}, None
    for size in sizes:
        kernel, _ = kernels.best_kernel(mean, found.profile, grid, size, keys)
        errors[size] = np.sqrt(inner(kernel - mean, kernel - mean) / inner(mean, mean))
        if values is not None and change is None:
            change = output_change(*values, attention, kept, kernel, layout)
    attention = attention[: keep * windows]
    # Of sum (A - 1/P)^2 the squares are known, and the sum of A from the mean.
    variance = found.squares - 2 / pixels * mean.sum(axis=(0, 2, 3)) * len(part) / windows + len(part)
    had = (1 - kept.mean(axis=(0, 2, 3), dtype=np.float64)).clip(0) * bool(len(layout.others))
    return Layer(
        number,
        layout,
        keys,
        part[: keep * windows].copy() if keep * windows < len(part) else part,
        found._replace(mean=mean.astype(np.float32)),
        layer_statistics(
            part.reshape(*part.shape[:2], *grid, *grid),
            grid_shifts(1, sizes[0]),
            allowed=None if keys is None else keys.mean(axis=0),
        ),
        had,
        np.where(variance > 1e-9 * len(part), found.by_key / np.maximum(variance, 1e-12), 0),
        kernels.best_shift(mean, grid, keys),
        kernels.within(mean, grid, sizes[0]),
        errors,
        attention.mean(axis=1),
        attention[:, :, layout.others[0], layout.tokens[0]] if len(layout.others) else None,
        output_change=change,
    )


def position_alone(attention: np.ndarray, layer: Layer) -> Float[np.ndarray, " h"]:
    """Cosine of the mean attention with that of an image `(w, h, q, p)` whose patches are all alike, less uniform."""
    part, _ = between(attention, layer.layout)
    uniform = layer.instead("uniform", 1)
    alone, mean = part - uniform, layer.anatomy.mean - uniform
    product, *squares = (np.sum(a * b, axis=(0, 2, 3)) for a, b in ((alone, mean), (alone, alone), (mean, mean)))
    return product / np.sqrt(np.maximum(squares[0] * squares[1], 1e-30))


def replaced(attention: np.ndarray, instead: np.ndarray, layout: Layout, heads: Any) -> np.ndarray:
    """Returns attention over all tokens with some heads' attention between patches replaced by `(w, h, p, p)`."""
    attention = attention.copy()
    patches, count = patches_of(layout), len(layout.tokens[0])
    ones = np.ones((count, 1), np.float32)
    for head in heads:
        part = attention[:, head][:, *patches]
        kept = (part @ ones).reshape(-1, layout.windows, count, 1)
        attention[:, head][:, *patches] = (kept * instead[:, head]).reshape(part.shape)
    return attention


def output_change(
    values: np.ndarray,
    averages: np.ndarray,
    attention: np.ndarray,
    kept: np.ndarray,
    kernel: np.ndarray,
    layout: Layout,
) -> Float[np.ndarray, " h"]:
    """Returns the relative change of each head's averages with its kernel, over patches, images and windows.

    Of averages of values by attention over all tokens, `(n, h, ...)` each, and what patches had of it.
    """
    tokens, rows = layout.tokens[0], layout.tokens[0][:, None]
    values, averages = values[: len(attention)], averages[: len(attention)]
    own = of_patches = averages[:, :, tokens]
    if len(layout.others):
        of_patches = own - attention[:, :, rows, layout.others] @ values[:, :, layout.others]
    # All images in one product of a kernel: (w, h, p, n c).
    by_window = values[:, :, tokens].reshape(-1, layout.windows, values.shape[1], len(tokens), values.shape[-1])
    blurred = kernel.astype(np.float32) @ by_window.transpose(1, 2, 3, 0, 4).reshape(*by_window.shape[1:4], -1)
    blurred = blurred.reshape(*blurred.shape[:3], len(by_window), -1).transpose(3, 0, 1, 2, 4).reshape(own.shape)
    return np.sqrt(squares_of(of_patches - kept * blurred) / np.maximum(squares_of(own), 1e-30))


def squares_of(averages: Float[np.ndarray, "n h q c"]) -> Float[np.ndarray, " h"]:
    """The sum of squares by head."""
    return np.square(averages, dtype=np.float64).sum(axis=(0, 2, 3))
