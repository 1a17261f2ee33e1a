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

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.arrays import Grid

MOST_ITERATIONS = 500
CLOSE_ENOUGH = 1e-12  # change of `r`, relative to its largest entry, that ends the fit
PARTS = ("relative", "absolute", "content")


class Anatomy(NamedTuple):
    """Shares of the variance of attention, head by head."""

    shares: Float[np.ndarray, "h 3"]  # relative, absolute, content; they add to 1, or are 0 for uniform attention
    errors: Float[np.ndarray, "h 3"]  # standard errors from so few images, by the jackknife; 0 for fewer than three
    profile: Float[np.ndarray, "h r s"]  # `r`, by shift from `-(H - 1), -(W - 1)` on; its sum is 1


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
    mean = attention.mean(axis=0)
    profile = relative_profile(mean, grid)
    relative = by_place(profile, grid) - 1 / pixels
    fitted = (profile[0].size - 1) / (pixels * (pixels - 1))  # numbers in r, of those in a mean

    def shares_of(mean: np.ndarray, within: np.ndarray, n: int) -> np.ndarray:
        """Shares where `within` is the sum of squares around the mean of n images, per image."""
        place, squares = mean - 1 / pixels, np.square(relative).sum(axis=(1, 2))
        of_shift = np.square((place * relative).sum(axis=(1, 2))) / np.maximum(squares, 1e-300)
        whole = np.square(place).sum(axis=(1, 2)) + within
        noise = within / max(n - 1, 1) * (n > 1)
        of_place = np.maximum(whole - within - of_shift - (1 - fitted) * noise, 0)
        of_shift = np.maximum(of_shift - fitted * noise, 0)
        parts = np.stack([of_shift, of_place, whole - of_shift - of_place], axis=-1)
        return np.where(whole[:, None] > 1e-24, parts / np.maximum(whole, 1e-24)[:, None], 0)

    around = np.square(attention - mean).sum(axis=(2, 3))  # by image
    shares = shares_of(mean, around.mean(axis=0), count)
    if count < 3:
        return Anatomy(shares, np.zeros_like(shares), profile)
    n = count - 1
    # Without image i the mean moves by (mean - A_i) / n, the squares around it fall by its own (n + 1) / n.
    rest = (around.sum(axis=0) - around * count / n) / n
    without = np.stack([shares_of(mean + (mean - a) / n, r, n) for a, r in zip(attention, rest, strict=True)])
    return Anatomy(shares, np.sqrt(n * without.var(axis=0)), profile)


def relative_profile(mean: Float[np.ndarray, "h q p"], grid: Grid) -> Float[np.ndarray, "h r s"]:
    """Returns `r`, the attention by shift whose renormalised form is the likeliest to give `mean`; its sum is 1.

    By iterative scaling: `r` is multiplied by what each shift receives over what the model gives it, until both agree.
    """
    index, shape = shift_index(grid).ravel(), (-1, *(2 * size - 1 for size in grid))
    observed = np.stack([np.bincount(index, weights=head.ravel()) for head in mean]).reshape(shape)
    # Where a shift leads from a query to a key inside, along rows and along columns: sums over windows as products.
    rows, columns = (np.tri(size, 2 * size - 1, size - 1) - np.tri(size, 2 * size - 1, -1) for size in grid)
    rows, columns = rows[::-1], columns[::-1]
    profile = np.ones_like(observed)
    for _ in range(MOST_ITERATIONS):
        normaliser = rows @ profile @ columns.T  # by query
        fitted = observed / (rows.T @ (1 / normaliser) @ columns)
        fitted /= fitted.sum(axis=(1, 2), keepdims=True)
        moved, profile = np.abs(fitted - profile).max(), fitted
        if moved < CLOSE_ENOUGH * profile.max():
            break
    return profile


def by_place(profile: Float[np.ndarray, "h r s"], grid: Grid) -> Float[np.ndarray, "h q p"]:
    """Returns `r[p - q]` for all pairs of pixels, renormalised over keys inside the grid."""
    places = profile.reshape(len(profile), -1)[:, shift_index(grid)]
    return places / places.sum(axis=-1, keepdims=True)


def shift_index(grid: Grid) -> Int[np.ndarray, "q p"]:
    """Returns for query and key, `(q, p)`, where their shift is in a flattened array by shift."""
    row, column = np.indices(grid).reshape(2, -1)
    rows, columns = (place - place[:, None] + size - 1 for place, size in zip((row, column), grid, strict=True))
    return rows * (2 * grid[1] - 1) + columns
