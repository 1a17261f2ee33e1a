"""Anatomy of attention: how much of it the shift explains, how much the query's place, how much the image.

For one head, `A[n, q, p]` is the attention of query `q` to key `p` in image `n`, and `U = 1 / P` attention that is
uniform over the `P` keys. Three nested models explain the variance `mean (A - U)^2` over images, queries and keys:

- **relative**: `U + c (R - U)`, where `R[q, p] = r[p - q] / sum_p' r[p' - q]` depends on the shift alone. The sum is
  over keys inside the grid, as softmax renormalises: a convolution by Theorem 1 is all relative, borders included.
- **absolute**: `B[q, p]`, the mean of `A` over images: any function of the two places.
- **content**: `A` itself.

`r` is the maximum-likelihood fit to `B`, and `c` the least-squares coefficient, which makes the parts orthogonal: the
variances `c^2 mean (R - U)^2`, `mean (B - U - c (R - U))^2` and `mean (A - B)^2` add to the whole exactly.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.lib.stride_tricks import sliding_window_view

from attn_cnn_jax.arrays import Grid

MOST_ITERATIONS = 500
CLOSE_ENOUGH = 1e-12  # change of `r`, relative to its largest entry, that ends the fit
PARTS = ("relative", "absolute", "content")


class Anatomy(NamedTuple):
    """Shares of the variance of attention, head by head."""

    shares: Float[np.ndarray, "h 3"]  # relative, absolute, content; they add to 1, or are 0 for uniform attention
    errors: Float[np.ndarray, "h 3"] | None  # standard, by the jackknife; None for fewer than three images or photos
    profile: Float[np.ndarray, "h r s"]  # `r`, by shift from `-(H - 1), -(W - 1)` on; its sum is 1
    mean: Float[np.ndarray, "w h q p"]  # attention, over images
    squares: Float[np.ndarray, " h"]  # sum of attention squared, over images, windows, queries and keys
    by_key: Float[np.ndarray, " h"]  # sum of (mean over queries - 1 / P)^2, over the same
    photos: int  # how many images are independent of each other


def anatomy(
    attention: Float[np.ndarray, "n h q p"],
    grid: Grid,
    *,
    windows: int = 1,
    keys: Bool[np.ndarray, "w q p"] | None = None,
    groups: Any = None,
) -> Anatomy:
    """Returns the shares of one layer's heads.

    The mean of few images follows them: the content's variance is corrected by `n / (n - 1)`, at the cost of the other
    parts, in proportion to the numbers that each fits. In one image content counts as place.

    Args:
      attention: sums to 1 over keys; pixels row by row. Give one image where attention does not depend on images.
        Windows of an image follow one another: `n = b w`.
      grid: rows and columns of pixels of an image or a window, `q = p = rows columns`.
      windows: `w`, of an image.
      keys: which of them each query has, by window; None for all.
      groups: by image the photo that it is from, for the errors; None where all differ.
    """
    images = attention.reshape(-1, windows, *attention.shape[1:])
    count, shape, pixels = len(images), images.shape[1:], math.prod(grid)
    groups = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
    mean = np.zeros(shape)
    for image in images:
        mean += image
    mean /= count
    profile = relative_profile(mean, grid, keys)
    uniform = 1 / pixels if keys is None else (keys / keys.sum(axis=-1, keepdims=True))[:, None]
    relative = np.ascontiguousarray(np.broadcast_to(by_place(profile, grid, keys) - uniform, shape))
    fitted = (profile[0].size - 1) / (windows * pixels * (pixels - 1))  # numbers in r, of those in a mean
    # By head: products of the mean, and of the sum of the images of a group; all else follows from them.
    place, of_relative = mean - uniform, inner(relative, relative)
    mean_mean, mean_relative, place_place, place_relative = (
        inner(x, y) for x, y in ((mean, mean), (mean, relative), (place, place), (place, relative))
    )
    squares, by_key, rows = np.zeros(shape[1]), np.zeros(shape[1]), []
    for group in range(groups.max() + 1):
        members = np.flatnonzero(groups == group)
        own, whole = np.zeros(shape[1]), np.zeros(shape if len(members) > 1 else 0)
        for n in members:
            image = images[n].astype(np.float64)
            own += inner(image, image)
            by_key += pixels * np.square(image.mean(axis=2) - 1 / pixels).sum(axis=(0, 2))
            whole = whole + image if len(members) > 1 else image
        own_whole = inner(whole, whole) if len(members) > 1 else own
        squares += own
        rows.append((len(members), own, own_whole, inner(whole, mean), inner(whole, relative)))

    def shares_of(place: Any, shift: Any, within: Any, n: int, least: float = 0.0) -> np.ndarray:
        """Shares by the squares of place, its product with the relative part, and the squares around n images."""
        of_shift = np.square(shift) / np.maximum(of_relative, 1e-300)
        whole, noise = place + within, within / max(n - 1, 1) * (n > 1)
        of_place = np.maximum(place - of_shift - (1 - fitted) * noise, least)
        of_shift = np.maximum(of_shift - fitted * noise, least)
        parts = np.stack([of_shift, of_place, whole - of_shift - of_place], axis=-1)
        return np.where(whole[:, None] > 1e-24 * windows, parts / np.maximum(whole, 1e-24)[:, None], 0)

    shares = shares_of(place_place, place_relative, np.maximum(squares / count - mean_mean, 0), count)
    if min(count, len(rows)) < 3:
        return Anatomy(shares, None, profile, mean, squares, by_key, len(rows))
    without = []  # a group; not cut at 0, where a share would seem certain
    for size, own, whole_whole, whole_mean, whole_relative in rows:
        n = count - size
        moved = size * mean_mean - whole_mean  # product of the mean with what it moves by, times n
        around = size**2 * mean_mean - 2 * size * whole_mean + whole_whole
        place_then = place_place + 2 * moved / n + around / n**2
        shift_then = place_relative + (size * mean_relative - whole_relative) / n
        within_then = (squares - own) / n - (mean_mean + 2 * moved / n + around / n**2)
        without.append(shares_of(place_then, shift_then, np.maximum(within_then, 0), n, -np.inf))
    errors = np.sqrt((len(rows) - 1) * np.stack(without).var(axis=0))
    return Anatomy(shares, errors, profile, mean, squares, by_key, len(rows))


def inner(a: Float[np.ndarray, "w h q p"], b: Float[np.ndarray, "w h q p"]) -> Float[np.ndarray, " h"]:
    """Returns the sum of products by head."""
    return np.vecdot(a.reshape(*a.shape[:2], -1), b.reshape(*b.shape[:2], -1)).sum(axis=0)


def relative_profile(
    mean: Float[np.ndarray, "w h q p"], grid: Grid, keys: Bool[np.ndarray, "w q p"] | None = None
) -> Float[np.ndarray, "h r s"]:
    """Returns `r`, the attention by shift whose renormalised form is the likeliest to give `mean`; its sum is 1.

    By iterative scaling: `r` is multiplied by what each shift receives over what the model gives it, until both agree.
    `keys` says which of them each query has, all of them by default.
    """
    observed = by_shift(mean, grid)
    # Where a shift leads from a query to a key inside, along rows and along columns: sums over windows as products.
    rows, columns = (np.tri(size, 2 * size - 1, size - 1) - np.tri(size, 2 * size - 1, -1) for size in grid)
    rows, columns = rows[::-1], columns[::-1]
    if keys is not None:  # by query, of the different windows
        different, times = np.unique(keys.reshape(len(keys), -1), axis=0, return_counts=True)
        scattered = np.zeros((different.size // math.prod(grid), observed[0].size))
        queries = np.arange(len(scattered)).repeat(math.prod(grid))
        scattered[queries, np.tile(shift_index(grid).ravel(), len(different))] = different.ravel()
        times = np.repeat(times, math.prod(grid))[:, None]
    profile = np.ones_like(observed)
    for _ in range(MOST_ITERATIONS):
        if keys is None:
            given = len(mean) * (rows.T @ (1 / (rows @ profile @ columns.T)) @ columns)
        else:
            given = (scattered.T @ (times / (scattered @ flat(profile).T))).T.reshape(observed.shape)
        fitted = observed / np.maximum(given, 1e-300)
        fitted /= fitted.sum(axis=(1, 2), keepdims=True)
        moved, profile = np.abs(fitted - profile).max(), fitted
        if moved < CLOSE_ENOUGH * profile.max():
            break
    return profile


def by_shift(mean: Float[np.ndarray, "w h q p"], grid: Grid) -> Float[np.ndarray, "h r s"]:
    """Returns the sum of attention on each shift, over queries and windows."""
    index, (rows, columns) = shift_index(grid).ravel(), (2 * size - 1 for size in grid)
    sums = [np.bincount(index, weights=head, minlength=rows * columns) for head in flat(mean)]
    return np.reshape(sums, (-1, rows, columns))


def flat(array: np.ndarray) -> np.ndarray:
    """All numbers of a head in one row, summed over windows where the array has them."""
    array = array.sum(axis=0) if array.ndim == 4 else array
    return array.reshape(len(array), -1)


def by_place(
    profile: Float[np.ndarray, "h r s"], grid: Grid, keys: Bool[np.ndarray, "w q p"] | None = None
) -> Float[np.ndarray, "*w h q p"]:
    """Returns `r[p - q]` for all pairs of pixels, renormalised over keys inside the grid, or those given by window."""
    pixels = math.prod(grid)
    places = sliding_window_view(profile, grid, axis=(1, 2))[:, ::-1, ::-1].reshape(-1, pixels, pixels)
    places = places if keys is None else places * keys[:, None]
    return places / np.maximum(places @ np.ones((pixels, 1)), 1e-300)


def shift_index(grid: Grid) -> Int[np.ndarray, "q p"]:
    """Returns for query and key, `(q, p)`, where their shift is in a flattened array by shift."""
    row, column = np.indices(grid).reshape(2, -1)
    rows, columns = (place - place[:, None] + size - 1 for place, size in zip((row, column), grid, strict=True))
    return rows * (2 * grid[1] - 1) + columns
