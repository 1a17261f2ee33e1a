"""PaPE, parabolic position encoding: the query chooses how wide its parabolas are and how far they tilt."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.encoding import Projections, Rows, at_rows, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.content import QueryKey, split_heads
from attn_cnn_jax.models.layers import at_least_float32, flattened, linear, uniform

PARABOLAS = 2  # per head: two reach any quadratic with an axis-aligned or rotated ellipse


class Parabolas(NamedTuple):
    """Queries and keys, and `a` and `b` of every query: width and tilt, None for the variant without."""

    projections: Projections
    width: Float[Array, "b h H W p"]
    tilt: Float[Array, "b h H W p"] | None


@register("pape")
class Pape(QueryKey):
    """PaPE (arXiv 2602.01418): `q . k / sqrt(D_h) + sum_p [-a_p (u_q - u_k)^2 + b_p (u_q - u_k)]`.

    `u = w_p . (row, column)`, `a = softplus(A x_q)`, `b = B x_q`, for each head. A parabola is
    `-a (u_k - u_q + b / (2 a))^2` and a constant: eq. 9 whose centre and width the query chooses.

    Attributes:
      query, key: linear maps `D -> h D_h`.
      width, tilt: `A` and `B`, linear maps `D -> h P` without bias; `P = 2`.
      direction: `w`, `(h, P, 2)` one over pixels, row first; starts uniform in `+-1/sqrt(2)`.
    """

    head_axis = {**QueryKey.head_axis, "width.kernel": 1, "tilt.kernel": 1, "direction": 0}
    not_decayed = ("direction",)  # decay would make attention uniform
    tilts, learned = True, True  # whether there is a tilt; whether directions are trained

    def __init__(
        self, num_heads: int, hidden_size: int, head_size: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ):
        super().__init__(num_heads, hidden_size, head_size, dtype=dtype, rngs=rngs)
        common = {"use_bias": False, "dtype": dtype, "rngs": rngs}
        self.width = linear(hidden_size, num_heads * PARABOLAS, **common)
        self.tilt = linear(hidden_size, num_heads * PARABOLAS, **common) if self.tilts else None
        shape = (num_heads, PARABOLAS, 2)
        self.direction = nnx.Param(uniform(2)(rngs.params(), shape, at_least_float32(dtype)))

    def rescale(self, rows: float, columns: float) -> None:
        self.direction[...] = self.direction[...] / jnp.array([rows, columns], self.direction.dtype)[None, None]

    def project(self, x: Float[Array, "b H W d"]) -> Parabolas:
        wide = at_least_float32(x.dtype)

        def by_head(layer):
            return split_heads(flattened(layer, x), self.num_heads).astype(wide)

        tilt = None if self.tilt is None else by_head(self.tilt)
        return Parabolas(super().project(x), jax.nn.softplus(by_head(self.width)), tilt)

    def content_terms(self, projections: Parabolas, query_rows: Rows) -> dict[str, Float[Array, "..."]]:
        height, width = projections.width.shape[2:4]
        direction = self.direction[...] if self.learned else jax.lax.stop_gradient(self.direction[...])
        row = relative_positions(query_rows, height).astype(direction.dtype)[:, None, :, None]
        column = relative_positions(jnp.arange(width), width).astype(direction.dtype)[None, :, None, :]
        along = [direction[:, :, axis, None, None, None, None] for axis in range(2)]
        shift = along[0] * row[None, None] + along[1] * column[None, None]  # u_k - u_q

        def summed(factor, power):
            return jnp.einsum("bhijp,hpijkl->bhijkl", at_rows(factor, query_rows), power)

        parabolas = -summed(projections.width, shift**2)
        if projections.tilt is not None:
            parabolas -= summed(projections.tilt, shift)
        return {**super().content_terms(projections.projections, query_rows), "parabolas": parabolas}


@register("pape_ri")
class RotationInvariantPape(Pape):
    """PaPE-RI: no tilt, and directions `w` that stay as they were drawn."""

    tilts, learned = False, False
