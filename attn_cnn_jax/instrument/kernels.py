"""Heads replaced by convolutions, and by what a convolution has to beat: uniform attention, and its mean over images.

A head is replaced by its best K x K kernel of attention; values and output maps stay, and so does what a query gives to
class and register tokens. The kernel is the better, by squared error, of two: the attention by shift within K x K,
renormalised inside the grid; and the attention on each shift, mean over interior queries, with the outermost patches
repeated beyond the border, as sharp heads have it. Of a window whose parts do not touch, the first alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.instrument.anatomy import by_place, inner
from attn_cnn_jax.theorem.to_convolution import interior, kernel_axis, shift_weights

INSTEAD = ("kernel", "uniform", "mean")  # of a head's attention


class Shift(NamedTuple):
    """The shift that a head attends to most."""

    rows: Float[np.ndarray, " h"]
    columns: Float[np.ndarray, " h"]
    share: Float[np.ndarray, " h"]  # of its attention, mean over the queries from which it stays inside


class Filters(NamedTuple):
    """Heads as K x K kernels, one weight per shift."""

    weights: Float[np.ndarray, "h r t"]
    repeated: Bool[np.ndarray, " h"]  # whether the outermost patches continue beyond the border; else renormalised


def best_kernel(
    mean: Float[np.ndarray, "w h q p"],
    profile: Float[np.ndarray, "h r s"],
    grid: Grid,
    kernel_size: int,
    keys: Bool[np.ndarray, "w q p"] | None = None,
) -> Float[np.ndarray, "w h q p"]:
    """Returns what each query takes of each key by the best kernel for a head's mean attention and its profile."""
    cut = np.broadcast_to(renormalised(profile, grid, kernel_size, keys), mean.shape)
    if keys is not None:
        return cut
    repeated = with_border(of_interior(mean, grid, kernel_size), grid)
    better = is_better(repeated, cut[0], mean)
    return np.broadcast_to(np.where(better[:, None, None], repeated, cut[0]), mean.shape)


def best_filters(
    mean: Float[np.ndarray, "w h q p"], profile: Float[np.ndarray, "h r s"], grid: Grid, kernel_size: int
) -> Filters:
    """Returns the weights of `best_kernel`, of a layer without masked parts of windows."""
    interior = of_interior(mean, grid, kernel_size)
    rows, columns = (kernel_axis(kernel_size) + size - 1 for size in grid)
    cut = np.broadcast_to(renormalised(profile, grid, kernel_size), mean.shape)
    repeated = is_better(with_border(interior, grid), cut[0], mean)
    return Filters(np.where(repeated[:, None, None], interior, profile[:, rows[:, None], columns]), repeated)


def renormalised(
    profile: Float[np.ndarray, "h r s"], grid: Grid, kernel_size: int, keys: Bool[np.ndarray, "w q p"] | None = None
) -> Float[np.ndarray, "_ h q p"] | Float[np.ndarray, "h q p"]:
    """A profile cut to a kernel, as attention whose sum is one at the border too."""
    rows, columns = (np.isin(np.arange(-size + 1, size), kernel_axis(kernel_size)) for size in grid)
    return by_place(np.where(rows[:, None] & columns, profile, 0), grid, keys)


def of_interior(mean: Float[np.ndarray, "w h q p"], grid: Grid, kernel_size: int) -> Float[np.ndarray, "h r t"]:
    """The attention on each shift of a kernel, mean over interior queries."""
    return np.asarray(shift_weights(over_windows(mean).reshape(-1, *grid, *grid), kernel_size), np.float64)


def with_border(weights: Float[np.ndarray, "h r t"], grid: Grid) -> Float[np.ndarray, "h q p"]:
    """A kernel as attention, with the outermost patches repeated beyond the border."""
    taps = []
    for size, length in zip(grid, weights.shape[1:], strict=True):
        keys = np.clip(kernel_axis(length)[:, None] + np.arange(size), 0, size - 1)
        taps.append((keys[:, :, None] == np.arange(size)).astype(np.float64))
    pixels = grid[0] * grid[1]
    return np.einsum("hrt,rik,tjl->hijkl", weights, *taps, optimize=True).reshape(-1, pixels, pixels)


def is_better(one: np.ndarray, other: np.ndarray, mean: Float[np.ndarray, "w h q p"]) -> Bool[np.ndarray, " h"]:
    """Whether the first is nearer to the mean attention, head by head."""
    mean = over_windows(mean)
    return np.less(*(inner(*[(kernel - mean)[None]] * 2) for kernel in (one, other)))


def over_windows(mean: Float[np.ndarray, "w h q p"]) -> Float[np.ndarray, "h q p"]:
    """The mean attention over windows, without a copy where there is one."""
    return mean[0] if len(mean) == 1 else mean.mean(axis=0)


def best_shift(mean: Float[np.ndarray, "w h q p"], grid: Grid) -> Shift:
    """Returns the shift on which each head's attention, mean over images and windows, is largest."""
    whole = over_windows(mean).reshape(-1, *grid, *grid)
    heads, (height, width) = len(whole), grid
    rows, columns = np.arange(height), np.arange(width)
    moved = np.zeros((heads, 2 * height - 1, 2 * width - 1))
    for i in rows:
        for j in columns:
            moved[:, height - 1 - i : 2 * height - 1 - i, width - 1 - j : 2 * width - 1 - j] += whole[:, i, j]
    inside = (height - abs(np.arange(1 - height, height)))[:, None] * (width - abs(np.arange(1 - width, width)))
    few = inside * 4 < height * width  # a share of a few queries at the border is no shift
    moved = np.where(few, 0, moved / inside).reshape(heads, -1)
    best = moved.argmax(axis=1)
    row, column = np.divmod(best, 2 * width - 1)
    return Shift(row + 1.0 - height, column + 1.0 - width, moved[np.arange(heads), best])


def within(mean: Float[np.ndarray, "w h q p"], grid: Grid, kernel_size: int) -> Float[np.ndarray, " h"]:
    """Returns the share of attention within K x K, mean over queries whose window is inside the grid."""
    whole = over_windows(mean).reshape(-1, *grid, *grid)
    shifts = kernel_axis(kernel_size)
    rows, columns = (interior(kernel_size, size) for size in grid)
    shares = []
    for i in rows:
        for j in columns:
            window = whole[:, i, j, max(0, i + shifts[0]) : i + shifts[-1] + 1]
            shares.append(window[:, :, max(0, j + shifts[0]) : j + shifts[-1] + 1].sum(axis=(1, 2)))
    return np.mean(shares, axis=0)
