"""Quadratic encodings: every head attends to a Gaussian around its centre, round (eq. 9) or of any shape."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import Encoding, FactorisingEncoding, PositionTerms, Rows, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import at_least_float32, normal


class CentredEncoding(Encoding):
    """What quadratic encodings share: parameters `centre` and `spread` of every head."""

    head_axis = {"centre": 0, "spread": 0}
    not_decayed = ("centre", "spread")  # decay would pull heads towards the query pixel and towards uniform attention
    centre: nnx.Param[Array]
    spread: nnx.Param[Array]
    circle: ClassVar[Float[np.ndarray, "..."]]  # the initial spread, before noise

    def __init__(self, num_heads: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        param_dtype = at_least_float32(dtype)
        self.centre = nnx.Param(2.0 * normal(rngs.params(), (num_heads, 2), param_dtype))
        noise = 0.01 * normal(rngs.params(), (num_heads, *self.circle.shape), param_dtype)
        self.spread = nnx.Param(jnp.asarray(self.circle, param_dtype)[None] + noise)

    def start_on_grid(self, centre: Shaped[np.ndarray, "h 2"], sharpness: float) -> None:
        """Puts heads at these centres, all with one sharpness `alpha`, in one over square pixels."""
        spread = np.broadcast_to(np.sqrt(2 * sharpness) * self.circle, self.spread.shape)
        self.centre = nnx.Param(jnp.asarray(centre, self.centre.dtype))
        self.spread = nnx.Param(jnp.asarray(spread, self.spread.dtype))


@register("quadratic")
class Quadratic(FactorisingEncoding, CentredEncoding):
    """Isotropic quadratic encoding (eq. 9): `score_h(delta) = -alpha_h |delta - Delta_h|^2`, `alpha = s^2 / 2`.

    Attributes:
      centre: `Delta`, `(h, 2)` pixels, row first; starts as N(0, 2^2).
      spread: `s`, `(h,)` one over pixels; starts as 1 + N(0, 0.01^2).
    """

    circle = np.ones(())

    def rescale(self, rows: float, columns: float) -> None:
        """Centres times the scale, `alpha` over its square; of two scales by their geometric mean."""
        self.centre[...] = self.centre[...] * jnp.array([[rows, columns]], self.centre.dtype)
        self.spread[...] = self.spread[...] / (rows * columns) ** 0.5

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        def axis(size, centre):
            shift = relative_positions(jnp.arange(size), size).astype(centre.dtype)
            return jax.vmap(scores.quadratic_axis, in_axes=(None, 0, 0))(shift, centre, self.spread[...])

        return axis(height, self.centre[..., 0]), axis(width, self.centre[..., 1])


@register("quadratic_generalized")
class GeneralizedQuadratic(CentredEncoding):
    """Generalised quadratic encoding: `-1/2 (delta - mu_h)^T Sigma_h^-1 (delta - mu_h)`, `Sigma^-1 = S S^T`.

    Attributes:
      centre: `mu`, `(h, 2)` pixels, row first; starts as N(0, 2^2).
      spread: `S`, `(h, 2, 2)` one over pixels; starts as I + N(0, 0.01^2).
    """

    circle = np.eye(2)

    def rescale(self, rows: float, columns: float) -> None:
        scale = jnp.array([[rows, columns]], self.centre.dtype)
        self.centre[...] = self.centre[...] * scale
        self.spread[...] = self.spread[...] / scale[:, :, None]

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        centre, spread = self.centre[...], self.spread[...]
        row = relative_positions(query_rows, height).astype(centre.dtype)[:, None, :, None]
        column = relative_positions(jnp.arange(width), width).astype(centre.dtype)[None, :, None, :]
        return {"position": jax.vmap(scores.gaussian, in_axes=(None, None, 0, 0))(row, column, centre, spread)}


def covariance_penalty(parameters: Arrays) -> Float[Array, ""]:
    """The mean over all heads of `(condition number of Sigma^-1 - 1)^2`; its gradient exists for regular spreads."""
    spread = jnp.concatenate([array for name, array in parameters.items() if name.endswith(".position.spread")])
    diagonal = jnp.square(spread).sum(axis=-1)  # of S S^T
    off_diagonal = jnp.sum(spread[..., 0, :] * spread[..., 1, :], axis=-1)
    squared_gap = jnp.square(diagonal[..., 0] - diagonal[..., 1]) + 4 * jnp.square(off_diagonal)
    # At a circle the gradient of the gap between the eigenvalues is 0/0, though that of the penalty is 0.
    is_circle = squared_gap == 0
    gap = jnp.where(is_circle, 0, jnp.sqrt(jnp.where(is_circle, 1, squared_gap)))
    largest = (diagonal.sum(axis=-1) + gap) / 2
    # det / largest: trace - gap would lose the digits of a small eigenvalue.
    smallest = jnp.square(spread[..., 0, 0] * spread[..., 1, 1] - spread[..., 0, 1] * spread[..., 1, 0]) / largest
    return jnp.square(gap / smallest).mean()
