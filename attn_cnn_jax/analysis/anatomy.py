"""Anatomy of attention: how much of it the shift explains, how much the query's place, how much the image.

For one head, `A[n, q, p]` is the attention of query `q` to key `p` in image `n`, and `U = 1 / P` attention that is
uniform over the `P` keys. Three nested models explain the variance `mean (A - U)^2` over images, queries and keys:

- **relative**: `U + c (R - U)`, where `R[q, p] = r[p - q] / sum_p' r[p' - q]` depends on the shift alone. The sum is
  over keys inside the grid: what falls outside is renormalised, as softmax does, so that attention with a relative
  encoding, and so a convolution by Theorem 1, is relative through and through, borders included.
- **absolute**: `B[q, p]`, the mean of `A` over images: any function of the two places.
- **content**: `A` itself.

`r` is the maximum-likelihood fit to `B`, and `c` the least-squares coefficient, which makes the parts orthogonal: the
variances `c^2 mean (R - U)^2`, `mean (B - U - c (R - U))^2` and `mean (A - B)^2` add to the whole exactly.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import Grid

MOST_ITERATIONS = 500
CLOSE_ENOUGH = 1e-12  # change of `r`, of which the largest entry is 1, that ends the fit
PARTS = ("relative", "absolute", "content")


class Anatomy(NamedTuple):
    """Shares of the variance of attention, head by head.

    Attributes:
      shares: relative, absolute, content; they add to 1, or are 0 for attention that is uniform everywhere.
      errors: standard errors of the shares from so few images, by the jackknife; 0 for one image.
      profile: `r`, the attention by shift from `-(H - 1), -(W - 1)` on, with sum 1.
    """

    shares: Float[np.ndarray, "h 3"]
    errors: Float[np.ndarray, "h 3"]
    profile: Float[np.ndarray, "h r s"]


def anatomy(attention: Float[np.ndarray, "b h q p"], grid: Grid) -> Anatomy:
    """Returns the shares of one layer's heads.

    The mean of few images follows them: the content's variance is corrected by `n / (n - 1)`, at the cost of the other
    parts, in proportion to the numbers that each fits. In one image content counts as place.

    Args:
      attention: sums to 1 over keys; pixels row by row. Give one image where attention does not depend on images.
      grid: rows and columns of pixels, `q = p = rows columns`.
    """
    attention = np.asarray(attention, np.float64)
    count, _, _, pixels = attention.shape
    uniform = 1 / pixels
    mean = attention.mean(axis=0)
    profile = relative_profile(mean, grid)
    relative = by_place(profile, grid) - uniform
    squares = np.square(relative).sum(axis=(1, 2))
    fitted = (profile[0].size - 1) / (pixels * (pixels - 1))  # numbers in r, of those in a mean

    def shares_of(mean, within, n):
        """Shares where `within` is the sum of squares around the mean of n images, per image."""
        place = mean - uniform
        along = (place * relative).sum(axis=(1, 2))
        of_shift = np.divide(np.square(along), squares, out=np.zeros_like(along), where=squares > 0)
        of_place = np.square(place).sum(axis=(1, 2)) - of_shift
        whole = of_shift + of_place + within
        noise = within / (n - 1) if n > 1 else np.zeros_like(within)
        of_shift = np.maximum(of_shift - fitted * noise, 0)
        of_place = np.maximum(of_place - (1 - fitted) * noise, 0)
        parts = np.stack([of_shift, of_place, whole - of_shift - of_place], axis=-1)
        nothing = whole <= 1e-24
        return np.where(nothing[:, None], 0, parts / np.where(nothing, 1, whole)[:, None])

    around = np.square(attention - mean).sum(axis=(2, 3))  # by image
    shares = shares_of(mean, around.mean(axis=0), count)
    errors = np.zeros_like(shares)
    if count > 2:
        # Without image i the mean moves by (mean - A_i) / (n - 1), the squares around it fall by its own n / (n - 1).
        without = np.stack(
            [
                shares_of(
                    mean + (mean - image) / (count - 1),
                    (around.sum(axis=0) - own * count / (count - 1)) / (count - 1),
                    count - 1,
                )
                for image, own in zip(attention, around, strict=True)
            ]
        )
        errors = np.sqrt((count - 1) * np.square(without - without.mean(axis=0)).mean(axis=0))
    return Anatomy(shares, errors, profile)


def relative_profile(mean: Float[np.ndarray, "h q p"], grid: Grid) -> Float[np.ndarray, "h r s"]:
    """Returns `r`, the attention by shift whose renormalised form is the likeliest to give `mean`; its sum is 1.

    By iterative scaling: `r` is multiplied by what each shift receives over what the model gives it, until both agree.
    """
    height, width = grid
    observed = by_shift(mean, grid)
    profile = observed / count_pairs(grid)
    profile /= profile.sum(axis=(1, 2), keepdims=True)
    for _ in range(MOST_ITERATIONS):
        normaliser = windows(profile, (height, width))[:, ::-1, ::-1]  # by query
        scale = 1 / normaliser
        padded = np.pad(scale, [(0, 0), (height - 1, height - 1), (width - 1, width - 1)])
        expected = windows(padded, (height, width))[:, ::-1, ::-1]  # of r = 1, by shift
        fitted = observed / expected
        fitted /= fitted.sum(axis=(1, 2), keepdims=True)
        moved = np.abs(fitted - profile).max()
        profile = fitted
        if moved < CLOSE_ENOUGH * profile.max():
            break
    return profile


def by_shift(pairs: Float[np.ndarray, "h q p"], grid: Grid) -> Float[np.ndarray, "h r s"]:
    """Returns sums over all pairs of pixels that are the same shift `p - q` apart."""
    index = shift_index(grid).ravel()
    rows, columns = 2 * grid[0] - 1, 2 * grid[1] - 1
    sums = [np.bincount(index, weights=head.ravel(), minlength=rows * columns) for head in pairs]
    return np.stack(sums).reshape(-1, rows, columns)


def by_place(profile: Float[np.ndarray, "h r s"], grid: Grid) -> Float[np.ndarray, "h q p"]:
    """Returns `r[p - q]` for all pairs of pixels, renormalised over keys inside the grid."""
    places = profile.reshape(len(profile), -1)[:, shift_index(grid)]
    return places / places.sum(axis=-1, keepdims=True)


def shift_index(grid: Grid) -> np.ndarray:
    """Returns for query and key, `(q, p)`, where their shift is in a flattened array by shift."""
    height, width = grid
    row, column = (index.ravel() for index in np.indices(grid))
    rows = row[None] - row[:, None] + height - 1
    columns = column[None] - column[:, None] + width - 1
    return rows * (2 * width - 1) + columns


def count_pairs(grid: Grid) -> Float[np.ndarray, "r s"]:
    """Returns how many pairs of pixels there are for each shift."""
    by_axis = [size - np.abs(np.arange(-size + 1, size)) for size in grid]
    return np.multiply.outer(*by_axis).astype(np.float64)


def windows(x: Float[np.ndarray, "h r s"], size: Grid) -> Float[np.ndarray, "h i j"]:
    """Returns the sums over all windows of a size, as products with 0 and 1: small sums lose no digits."""
    rows, columns = (
        (np.arange(n) >= np.arange(n - m + 1)[:, None]) & (np.arange(n) < np.arange(n - m + 1)[:, None] + m)
        for n, m in zip(x.shape[1:], size, strict=True)
    )
    return rows.astype(x.dtype) @ x @ columns.astype(x.dtype).T
