"""Lemma 3 in numbers: how far the shifts of a kernel are from the span of a layer's attention maps.

A head need not attend to one pixel alone. Stack the attention maps of query `q` as columns of `A_q` (pixels x heads),
and the indicator vectors `e_(q + delta)` of a kernel's shifts as columns of `E_q` (pixels x shifts). The layer's output
at `q` depends on `A_q` alone, the convolution's on `E_q` alone, so the layer expresses every convolution with these
shifts only if the columns of `E_q` lie in the span of those of `A_q`. Two distances say how far they are:

- `residuals`: query by query, `min_X |A_q X - E_q| / |E_q|` in the Frobenius norm. Zero is the paper's condition.
- `mixing`: one `X` for all queries at once, as value maps are. `W^(h) = sum_delta X_(h, delta) W_delta` then makes the
  layer the convolution with slices `W_delta`, up to its residual. This is what a layer can reach.

The paper's condition is necessary and not sufficient, away from the border too: each query may be solvable with an `X`
of its own, since it sees the part of a map inside the image with a normaliser of its own, and the layer still is no
convolution (64 heads of a learned encoding over 8x8 pixels, 16 middle queries: residuals below 1e-14, mixing 0.5). One
`X` serves all queries where the attention of all heads that count vanishes outside a window inside the image.

A shift that leads out of the image reads a zero there: its column is zero and costs nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.arrays import AnyArray, SharedAttention
from attn_cnn_jax.errors import UserError

Queries = Sequence[tuple[int, int]]
SINGULAR = 1e-7  # directions of the maps below this share of the largest are rounding of float32


class Mixing(NamedTuple):
    """The least-squares solution of `A_q X = E_q` for several queries at once.

    Attributes:
      weights: `X`, `(h, n)`: how much of each shift's slice the value map of each head takes.
      residual: `|A X - E| / |E|` over all of these queries, in the Frobenius norm.
    """

    weights: Float[np.ndarray, "h n"]
    residual: float


def systems(
    attention: Float[AnyArray, "*b h i j k l"], shifts: Int[np.ndarray, "n 2"], queries: Queries | None = None
) -> tuple[Float[np.ndarray, "*b q pixels h"], Float[np.ndarray, "q pixels n"]]:
    """Returns `A_q`, of every image, and `E_q` of query pixels, None for all, row by row; in float64.

    A column of `E_q` has a one at pixel `q + delta`, and only zeros where that lies outside.
    """
    grid = attention.shape[-2], attention.shape[-1]
    at = np.array(list(np.ndindex(*grid)) if queries is None else queries)
    keys = shifts + at[:, None]
    expected = np.zeros((len(at), *grid, len(shifts)))
    query, shift = np.nonzero(((keys >= 0) & (keys < grid)).all(axis=-1))
    expected[query, *keys[query, shift].T, shift] = 1
    maps = np.asarray(attention[..., at[:, 0], at[:, 1], :, :], np.float64)
    maps = np.moveaxis(maps.reshape(*maps.shape[:-2], -1), -3, -1)
    return maps, expected.reshape(*maps.shape[-3:-1], -1)


def residuals(
    attention: Float[AnyArray, "*b h i j k l"], shifts: Int[np.ndarray, "n 2"], queries: Queries | None = None
) -> Float[np.ndarray, "*b q"]:
    """Returns `min_X |A_q X - E_q| / |E_q|` of each query, 0 where the lemma's condition holds, up to 1.

    Args:
      attention: of one layer, `(h, i, j, k, l)`, or of several images, `(b, h, i, j, k, l)`.
      shifts: of the kernel, in pixels, row first.
      queries: the query pixels; None for all, row by row.
    """
    maps, expected = systems(attention, shifts, queries)
    left, values, _ = np.linalg.svd(maps, full_matrices=False)
    basis = left * (values > SINGULAR * values[..., :1])[..., None, :]  # heads that attend alike count once
    missed = expected - basis @ (basis.swapaxes(-1, -2) @ expected)
    lengths = np.linalg.norm(expected, axis=(-2, -1))
    return np.linalg.norm(missed, axis=(-2, -1)) / np.maximum(lengths, 1e-300)


def mixing(attention: SharedAttention, shifts: Int[np.ndarray, "n 2"], queries: Queries | None = None) -> Mixing:
    """Returns the one `X` that solves `A_q X = E_q` best for all queries together, and what remains.

    Args:
      attention, shifts: as for `residuals`.
      queries: the query pixels, such as those inside the image; None for all.
    """
    maps, expected = (np.concatenate(of_queries) for of_queries in systems(attention, shifts, queries))
    weights = np.linalg.lstsq(maps, expected, rcond=SINGULAR)[0]
    missed = np.linalg.norm(maps @ weights - expected)
    return Mixing(weights, float(missed / max(np.linalg.norm(expected), 1e-300)))


def value_maps(weights: Float[np.ndarray, "h n"], kernel: Float[AnyArray, "r t d o"]) -> Float[np.ndarray, "h d o"]:
    """Returns `W^(h) = sum_delta X_(h, delta) W_delta`, the value maps with which heads express a convolution.

    `X` is what `mixing` returns for the shifts of the kernel, row by row.
    """
    slices = np.asarray(kernel, np.float64).reshape(-1, *kernel.shape[2:])
    if len(slices) != weights.shape[1]:
        raise UserError(f"a kernel with {len(slices)} entries: these weights are for {weights.shape[1]} shifts")
    return np.einsum("hn,ndo->hdo", weights, slices)
