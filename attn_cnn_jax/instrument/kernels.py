"""Heads replaced by convolutions, and by what a convolution has to beat: uniform attention, and its mean over images.

A head is replaced by its best K x K kernel of attention; values and output maps stay, and so does what a query gives to
class and register tokens. The kernel is the better, by squared error, of two: the attention by shift within K x K,
renormalised inside the grid; and the attention on each shift, mean over interior queries, with the outermost patches
repeated beyond the border, as sharp heads have it. Of a window whose parts do not touch, the first alone.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.anatomy import by_place, by_shift, inner
from attn_cnn_jax.theorem.to_convolution import interior, kernel_axis, on_shifts, taps

INSTEAD = ("kernel", "uniform", "mean")  # of a head's attention


def check_sizes(sizes: Sequence[Any], grids: Sequence[Grid]) -> None:
    """Raises UserError for kernels that are larger than all shifts of the smallest grid, or no integers."""
    most = 2 * min(max(grid) for grid in grids) - 1
    for size in sizes:
        if not isinstance(size, int | np.integer) or not 1 <= size <= most:
            raise UserError(f"kernel_size={size!r}: allowed is 1 to {most}, all shifts of this grid")


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
) -> tuple[Float[np.ndarray, "w h q p"], Filters]:
    """Returns the best kernel for a head's mean attention and its profile: what each query takes of each key, and it.

    `keys` says which of them each query has, by window; None for all.
    """
    shifts, whole = kernel_axis(kernel_size), over_windows(mean)
    rows, columns = (np.isin(np.arange(1 - size, size), shifts) for size in grid)
    cut = by_place(np.where(rows[:, None] & columns, profile, 0), grid, keys)
    beyond = [(0, 0), (kernel_size, kernel_size), (kernel_size, kernel_size)]  # a kernel may be larger than the grid
    rows, columns = (shifts + size - 1 + kernel_size for size in grid)
    weights, repeated = np.pad(profile, beyond)[:, rows[:, None], columns], np.zeros(len(profile), bool)
    if keys is None:
        inner_weights = np.asarray(on_shifts(whole.reshape(-1, *grid, *grid), kernel_size))
        edges = (taps(kernel_size, size, "edge").astype(float) for size in grid)
        other = np.einsum("hrt,rik,tjl->hijkl", inner_weights, *edges, optimize=True).reshape(whole.shape)
        repeated = np.less(*(inner(*[(kernel - whole)[None]] * 2) for kernel in (other, cut)))
        cut, weights = (np.where(repeated[:, None, None], *pair) for pair in ((other, cut), (inner_weights, weights)))
    return np.broadcast_to(cut, mean.shape), Filters(weights, repeated)


def over_windows(mean: Float[np.ndarray, "w h q p"]) -> Float[np.ndarray, "h q p"]:
    """The mean attention over windows, without a copy where there is one."""
    return mean[0] if len(mean) == 1 else mean.mean(axis=0)


def best_shift(mean: Float[np.ndarray, "w h q p"], grid: Grid, keys: Bool[np.ndarray, "w q p"] | None = None) -> Shift:
    """Returns the shift on which each head's attention, mean over images and windows, is largest.

    `keys` says which of them each query has, by window; None for all.
    """
    columns = np.arange(1 - grid[1], grid[1])
    rows = np.arange(1 - grid[0], grid[0])
    have = np.ones((len(mean), 1, *mean.shape[2:])) if keys is None else keys[:, None].astype(float)
    inside = by_shift(have, grid)[0]  # queries from which a shift stays inside, of all windows
    few = inside * 4 < len(mean) * math.prod(grid)  # a share of a few queries at the border is no shift
    shares = np.where(few, 0, by_shift(mean, grid) / np.maximum(inside, 1)).reshape(mean.shape[1], -1)
    row, column = np.divmod(shares.argmax(axis=1), len(columns))
    return Shift(rows[row].astype(float), columns[column].astype(float), shares.max(axis=1))


def within(mean: Float[np.ndarray, "w h q p"], grid: Grid, kernel_size: int) -> Float[np.ndarray, " h"]:
    """Returns the share of attention within K x K, mean over queries whose window is inside the grid."""
    rows, columns = (taps(kernel_size, size, "zeros").any(axis=0) for size in grid)
    shares = np.einsum("hijkl,ik,jl->hij", over_windows(mean).reshape(-1, *grid, *grid), rows, columns)
    i, j = (interior(kernel_size, size) for size in grid)
    return shares[:, i][:, :, j].mean(axis=(1, 2))
