"""The full relative form (eq. 8): content and positions in four terms."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import PositionTerms, Projections, Rows, at_rows, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.content import QueryKey, content_scores
from attn_cnn_jax.models.encodings.learned import RelativeTables
from attn_cnn_jax.models.layers import at_least_float32, uniform
from attn_cnn_jax.options import POSITION_SIZE


@register("relative")
class Relative(QueryKey):
    """The full relative form (eq. 8), every term scaled by `1/sqrt(D_h)`.

    `content_content`: `X_q W_qry W_key^T X_k^T`; `content_position`: `X_q W_qry What_key^T r_delta^T`;
    `position_content`: `u^T W_key^T X_k^T`; `position_position`: `v^T What_key^T r_delta^T`, with learned
    `r_delta = e_row[delta_row] + e_col[delta_col]`. No biases.

    Attributes:
      query, key: linear maps `D -> h D_h`.
      tables: the vectors `e`, of `D_p` channels.
      position_key: `What_key`, `(h, D_p, D_h)`.
      content_bias, position_bias: `u` and `v`, `(h, D_h)`.
    """

    options = {"position_size": POSITION_SIZE}
    head_axis = {**QueryKey.head_axis, "position_key": 0, "content_bias": 0, "position_bias": 0}

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        *,
        grid: Grid,
        position_size: int,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        def parameter(fan_in, *shape):
            return nnx.Param(uniform(fan_in)(rngs.params(), shape, at_least_float32(dtype)))

        self.tables = RelativeTables(grid, position_size, dtype=dtype, rngs=rngs)
        super().__init__(num_heads, hidden_size, head_size, use_bias=False, dtype=dtype, rngs=rngs)
        self.head_size, self.dtype = head_size, dtype
        self.position_key = parameter(position_size, num_heads, position_size, head_size)
        self.content_bias = parameter(head_size, num_heads, head_size)
        self.position_bias = parameter(head_size, num_heads, head_size)

    def rescale(self, rows: float, columns: float) -> None:
        self.tables.rescale(rows, columns)

    def position_keys(self, height: int, width: int) -> tuple[Float[Array, "h r c"], Float[Array, "h s c"]]:
        """`What_key^T e / sqrt(D_h)` for every row shift and every column shift of the tables."""
        self.tables.check(height, width)
        scale, maps = self.head_size**-0.5, self.position_key[...]
        row, column = (jnp.einsum("sd,hdc->hsc", t[...], maps) * scale for t in (self.tables.row, self.tables.column))
        return row, column

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        bias = self.position_bias[...]
        keys = (jnp.einsum("hc,hsc->hs", bias, keys) for keys in self.position_keys(height, width))
        row, column = by_pixels(keys, (height, width), query_rows)
        return {"position_position": row[:, :, None, :, None] + column[:, None, :, None, :]}

    def content_terms(self, projections: Projections, query_rows: Rows) -> dict[str, Float[Array, "..."]]:
        query, key, wide = at_rows(projections.query, query_rows), projections.key, at_least_float32(self.dtype)
        size = key.shape[2], key.shape[3]
        keys = by_pixels((each.astype(self.dtype) for each in self.position_keys(*size)), size, query_rows)
        row = jnp.einsum("bhijc,hikc->bhijk", query, keys[0], preferred_element_type=wide)
        column = jnp.einsum("bhijc,hjlc->bhijl", query, keys[1], preferred_element_type=wide)
        bias = self.content_bias[...].astype(self.dtype)
        by_key = jnp.einsum("hc,bhklc->bhkl", bias, key, preferred_element_type=wide)
        return {
            "content_content": content_scores(query, key),
            "content_position": row[..., :, None] + column[..., None, :],
            "position_content": by_key[:, :, None, None] * self.head_size**-0.5,
        }


def by_pixels(
    by_shift: Iterable[Float[Array, "h _ ..."]], size: Grid, query_rows: Rows
) -> tuple[Float[Array, "h i k ..."], Float[Array, "h j l ..."]]:
    """Values by row shift and by column shift, looked up for every query and key of each axis."""
    look_up, queries = jax.vmap(scores.at_shifts, in_axes=(0, None)), (query_rows, jnp.arange(size[1]))
    row, column = (look_up(x, relative_positions(q, n)) for x, q, n in zip(by_shift, queries, size, strict=True))
    return row, column
