"""How many heads a convolution needs: the rank of its kernel over shifts, or one more.

Unfold a kernel `T` into a row per shift, `T1`, `(K^2, D_in D_out)`. A layer with patterns of attention `a_h` over
shifts and value maps `W^(h)` is the convolution where `T1 = sum_h a_h vec(W^(h))^T`, a sum of `N_h` matrices of rank
one, so that `N_h >= r = rank T1`. Scores that read the image save no head: put `t X` for `X`, divide by `t` and let
`t -> 0`, and attention is that of `X = 0` (scores must be continuous there; those of the paper are).

Patterns are not negative and sum to one. Where the column space of `T1` has a vector that is positive on the kernel's
support, small steps from it to all sides are `r` patterns that span the space; else the same steps from the uniform
pattern are `r + 1`. With `n < r` heads the error in the Frobenius norm is at least that of the best approximation of
rank `n` (Eckart and Young), and `n + 1` heads reach it.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.layers import check_sizes

ROUNDING = 8  # units in the last place of a kernel, relative to its norm, below which a rest is rounding
POSITIVE = 1e-6  # least margin of a positive vector: a solver's precision. Below it one head more is used
LOST = 1e-10  # most that rounding may lose where patterns are nearly alike, relative to a kernel's norm
STEP = 0.9  # share of the largest step from the positive pattern that keeps the others positive


class HeadsNeeded(NamedTuple):
    """How many heads a kernel needs.

    Attributes:
      least: no layer with fewer heads keeps the tolerance, but for margins of a positive vector below `POSITIVE`.
      enough: `conv_to_attention(kernel, heads=enough)` does; `least`, or one more where a tolerance is above zero.
      error: `(m,)`: with `n` heads the relative error in the Frobenius norm is at least `error[n]`.
    """

    least: int
    enough: int
    error: Float[np.ndarray, " m"]


class FewHeads(NamedTuple):
    """Patterns of attention over a kernel's shifts and value maps of `n` heads.

    Attributes:
      patterns: `(n, shifts)`, not negative, sums of one.
      values: `W^(h)`, `(n, D_in, D_out)`.
      error: of the kernel that they make, relative, in the Frobenius norm.
      is_least: whether no `n` heads have a smaller error.
    """

    patterns: Float[np.ndarray, "n s"]
    values: Float[np.ndarray, "n d o"]
    error: float
    is_least: bool


def heads_needed(kernel: AnyArray, tolerance: float = 0.0) -> HeadsNeeded:
    """Returns how many heads a layer of attention needs to be a convolution.

    Args:
      kernel: `(*K, D_in, D_out)` with any number of axes.
      tolerance: relative error in the Frobenius norm, from 0 up to below 1; 0 is up to rounding of its type.
    """
    if not 0 <= tolerance < 1:
        raise UserError(f"tolerance={tolerance!r}: allowed is a number from 0 to below 1")
    error = rank_errors(np.linalg.svd(unfolded(kernel), compute_uv=False))
    limit = max(tolerance, rounding(kernel))
    least = max(1, int(np.argmax(error <= limit)))
    few = few_heads(kernel, least)
    enough = least if few.is_least or few.error <= tolerance else least + 1
    return HeadsNeeded(least if tolerance == limit else enough, enough, error)


def few_heads(kernel: AnyArray, heads: Any) -> FewHeads:
    """Returns `heads` patterns and value maps that make a kernel, exactly where they are enough.

    Otherwise the error is at most that of rank `heads - 1`, and that of rank `heads` where the column space of the best
    approximation has a positive vector. Heads beyond those that the kernel needs have value maps of zeros.
    """
    check_sizes(heads=heads)
    heads, table = int(heads), unfolded(kernel)
    support = supported(table, rounding(kernel))
    rows = table[support]
    left, singular, _ = np.linalg.svd(rows, full_matrices=False)
    errors = rank_errors(singular)
    rank = int(np.argmax(errors <= rounding(kernel)))
    uniform, basis, is_least = np.full(len(rows), 1 / len(rows)), left[:, : min(heads, rank)], heads >= rank
    if heads >= len(rows):
        patterns = np.eye(len(rows))
    elif (patterns := around_positive(basis, rows, float(errors[basis.shape[1]]) + LOST)) is not None:
        is_least = True
    elif heads > rank:
        patterns = around(uniform, basis)
    else:  # the space of `heads` dimensions that holds a positive pattern and most of the kernel beside it
        leading = np.abs(left[:, 0]) / np.abs(left[:, 0]).sum()
        options = [around(start, besides(start, rows)[:, : heads - 1]) for start in (uniform, (leading + uniform) / 2)]
        patterns, is_least = min(options, key=lambda option: error_of(option, rows)), False
    values = np.linalg.lstsq(patterns.T, rows, rcond=None)[0]
    spare = heads - len(patterns)
    everywhere = np.zeros((heads, len(table)))
    everywhere[:, support] = np.concatenate([patterns, np.tile(uniform, (spare, 1))])
    values = np.concatenate([values, np.zeros((spare, values.shape[1]))])
    error = np.linalg.norm(everywhere.T @ values - table) / max(np.linalg.norm(table), 1e-300)
    return FewHeads(everywhere, values.reshape(heads, *np.shape(kernel)[-2:]), float(error), is_least)


def effective_heads(patterns: Float[AnyArray, "h n"], maps: Float[AnyArray, "h d o"], tolerance: float = 0.05) -> int:
    """Returns the least number of heads that could replace those of a layer.

    It is the rank of `sum_h a_h vec(W^(h))^T` up to a tolerance: fewer heads, with any scores, have a larger error, and
    one head more is enough.

    Args:
      patterns: `a_h`, the attention of each head, over shifts or over pairs of pixels; `n` of them.
      maps: `W^(h) = W_val^(h) W_out^(h)`.
      tolerance: relative error in the Frobenius norm.
    """
    # The singular values of the sum, without that matrix.
    left, right = (np.linalg.qr(np.asarray(each, np.float64).reshape(len(each), -1).T)[1] for each in (patterns, maps))
    error = rank_errors(np.linalg.svd(left @ right.T, compute_uv=False))
    return int(np.argmax(error <= max(tolerance, len(error) * np.finfo(np.float32).eps)))


def unfolded(kernel: AnyArray) -> Float[np.ndarray, "s f"]:
    """`T1`: a row per shift, in float64."""
    kernel = np.asarray(kernel)
    if kernel.ndim < 3 or not kernel.size or np.iscomplexobj(kernel) or not np.isfinite(kernel).all():
        raise UserError(f"a kernel of shape {kernel.shape}: allowed are finite real numbers, (*axes, D_in, D_out)")
    return kernel.reshape(-1, kernel.shape[-2] * kernel.shape[-1]).astype(np.float64)


def rank_errors(singular: Float[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
    """The relative error of the best approximation of every rank from 0, in the Frobenius norm."""
    squares = np.append(np.cumsum(singular[::-1] ** 2)[::-1], 0)
    return np.sqrt(squares / max(squares[0], 1e-300))


def rounding(kernel: AnyArray) -> float:
    """The error relative to a kernel's norm that counts as rounding of its type."""
    dtype = np.asarray(kernel).dtype
    return ROUNDING * float(jnp.finfo(dtype if jnp.issubdtype(dtype, jnp.floating) else np.float64).eps)


def supported(table: Float[np.ndarray, "s f"], limit: float) -> Bool[np.ndarray, " s"]:
    """The shifts that a kernel reads: all but the weakest, which together are below `limit` of its norm."""
    squares = np.square(table).sum(axis=1)
    order = np.argsort(squares)
    support = np.ones(len(table), bool)
    support[order[np.cumsum(squares[order]) <= limit**2 * squares.sum()]] = False
    return support | (not support.any())


def around_positive(
    basis: Float[np.ndarray, "s r"], rows: Float[np.ndarray, "s f"], limit: float
) -> Float[np.ndarray, "r s"] | None:
    """As many positive patterns as a basis has columns, which span it, within an error; None where there are none.

    What is positive stays so where each shift is divided by its own norm, and a blur falls by orders of magnitude.
    """
    if not basis.shape[1]:
        return None
    norms = np.linalg.norm(basis, axis=1)
    scaled = most_positive(basis / np.maximum(norms, 1e-300)[:, None])[0]
    if scaled.min() <= POSITIVE:
        return None
    positive = scaled * norms
    patterns = around(positive / positive.sum(), basis)
    return patterns if error_of(patterns, rows) <= limit * np.linalg.norm(rows) else None


def most_positive(basis: Float[np.ndarray, "s r"]) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
    """Returns the vector `basis @ c`, all `|c_i| <= 1`, whose least entry is largest, at least 0; by a linear program.

    And the proof: `y >= 0` of sum one, so that no vector has a least entry above `|basis^T y|_1`, which this one has.
    """
    from scipy.optimize import linprog  # slow to import, and seldom needed

    size, dimension = basis.shape
    less_than = np.hstack([-basis, np.ones((size, 1))])  # t - (basis c)_i <= 0
    bounds = [(-1, 1)] * dimension + [(0, None)]
    solved = linprog(np.append(np.zeros(dimension), -1), less_than, np.zeros(size), bounds=bounds)
    return basis @ solved.x[:-1], -solved.ineqlin.marginals


def around(start: Float[np.ndarray, " s"], basis: Float[np.ndarray, "s r"]) -> Float[np.ndarray, "n s"]:
    """A positive pattern and steps from it: positive patterns that span it and the columns of `basis`."""
    directions = besides(start, basis)
    directions = directions - start[:, None] * directions.sum(axis=0)
    # As far as all entries stay positive, to the side on which that is farther.
    down, up = ((start[:, None] / np.maximum(side, 1e-300)).min(axis=0) for side in (-directions, directions))
    steps = np.where(down > up, down, -up) * STEP
    return np.vstack([start, (start[:, None] + steps * directions).T])


def besides(start: Float[np.ndarray, " s"], columns: Float[np.ndarray, "s f"]) -> Float[np.ndarray, "s n"]:
    """An orthonormal basis of what columns span beside one vector, largest part first."""
    unit = start / np.linalg.norm(start)
    left, singular, _ = np.linalg.svd(columns - np.outer(unit, unit @ columns), full_matrices=False)
    return left[:, singular > 1e-9 * np.linalg.norm(columns)]


def error_of(patterns: Float[np.ndarray, "n s"], rows: Float[np.ndarray, "s f"]) -> float:
    """The distance of rows from the span of patterns."""
    basis = np.linalg.qr(patterns.T)[0]
    return float(np.linalg.norm(rows - basis @ (basis.T @ rows)))
