"""The full relative form (eq. 8): content and positions in four terms."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import Encoding, Option, PositionTerms, Projections, Rows, Sizes, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.content import content_scores, split_heads
from attn_cnn_jax.models.encodings.learned import POSITION_SIZE, RelativeTables
from attn_cnn_jax.models.layers import at_least_float32, flattened, linear, uniform

RELATIVE_TERMS = ("content_content", "content_position", "position_content", "position_position")


def some_terms(value: Any) -> bool:
    """Whether a value names at least one of the four terms, each once, and nothing else."""
    known = isinstance(value, tuple | list) and all(term in RELATIVE_TERMS for term in value)
    return known and len(value) == len(set(value)) > 0


@register("relative")
class Relative(Encoding):
    """The full relative form (eq. 8), every term scaled by `1/sqrt(D_h)` and switchable by name.

    `content_content`: `X_q W_qry W_key^T X_k^T`; `content_position`: `X_q W_qry What_key^T r_delta^T`;
    `position_content`: `u^T W_key^T X_k^T`; `position_position`: `v^T What_key^T r_delta^T`, with learned
    `r_delta = e_row[delta_row] + e_col[delta_col]`. Only what the chosen terms need has parameters; no biases.

    Attributes:
      query, key: linear maps `D -> h D_h`.
      tables: the vectors `e`, of `D_p` channels.
      position_key: `What_key`, `(h, D_p, D_h)`.
      content_bias, position_bias: `u` and `v`, `(h, D_h)`.
    """

    options = {
        "relative_terms": Option(RELATIVE_TERMS, some_terms, f"some of {', '.join(RELATIVE_TERMS)}"),
        "position_size": POSITION_SIZE,
    }
    head_axis = {"position_key": 0, "content_bias": 0, "position_bias": 0, "query.kernel": 1, "key.kernel": 1}

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        *,
        grid: Grid,
        position_size: int,
        terms: tuple[str, ...] = RELATIVE_TERMS,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.num_heads, self.head_size, self.terms, self.dtype = num_heads, head_size, tuple(terms), dtype

        def needed(*names):
            return any(name in self.terms for name in names)

        def projection():
            return linear(hidden_size, num_heads * head_size, use_bias=False, dtype=dtype, rngs=rngs)

        def parameter(shape, fan_in):
            return nnx.Param(uniform(fan_in)(rngs.params(), shape, at_least_float32(dtype)))

        # Drawn in any case: the random numbers of all others do not depend on the terms.
        tables = RelativeTables(grid, position_size, dtype=dtype, rngs=rngs)
        positions, per_head = needed("content_position", "position_position"), (num_heads, head_size)
        self.query = projection() if needed("content_content", "content_position") else None
        self.key = projection() if needed("content_content", "position_content") else None
        self.tables = tables if positions else None
        self.position_key = parameter((num_heads, position_size, head_size), position_size) if positions else None
        self.content_bias = parameter(per_head, head_size) if needed("position_content") else None
        self.position_bias = parameter(per_head, head_size) if needed("position_position") else None

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, **options: Any) -> Encoding:
        terms, size = options.get("relative_terms", RELATIVE_TERMS), options.get("position_size") or sizes.hidden_size
        return cls(*sizes[:3], grid=sizes.grid, position_size=size, terms=terms, dtype=sizes.dtype, rngs=rngs)

    @property
    def depends_on_content(self) -> bool:
        return self.terms != ("position_position",)

    def rescale(self, rows: float, columns: float) -> None:
        if self.tables is not None:
            self.tables.rescale(rows, columns)

    def position_keys(self, height: int, width: int) -> tuple[Float[Array, "h r c"], Float[Array, "h s c"]]:
        """`What_key^T e / sqrt(D_h)` for every row shift and every column shift of the tables."""
        assert self.tables is not None
        assert self.position_key is not None
        self.tables.check(height, width)
        scale, maps = self.head_size**-0.5, self.position_key[...]
        row, column = (jnp.einsum("sd,hdc->hsc", t[...], maps) * scale for t in (self.tables.row, self.tables.column))
        return row, column

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        if self.position_bias is None:
            return {}
        bias = self.position_bias[...]
        keys = (jnp.einsum("hc,hsc->hs", bias, keys) for keys in self.position_keys(height, width))
        row, column = by_pixels(keys, (height, width), query_rows)
        return {"position_position": row[:, :, None, :, None] + column[:, None, :, None, :]}

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        layers = self.query, self.key
        return Projections(*(layer and split_heads(flattened(layer, x), self.num_heads) for layer in layers))

    def content_terms(self, projections: Projections, query_rows: Rows) -> dict[str, Float[Array, "..."]]:
        if not self.depends_on_content:
            return {}
        query = None if projections.query is None else projections.queries(query_rows)
        key, wide, terms = projections.key, at_least_float32(self.dtype), {}
        if "content_content" in self.terms:
            assert query is not None
            assert key is not None
            terms["content_content"] = content_scores(query, key)
        if "content_position" in self.terms:
            assert projections.query is not None
            size = projections.query.shape[2], projections.query.shape[3]
            keys = by_pixels((each.astype(self.dtype) for each in self.position_keys(*size)), size, query_rows)
            row = jnp.einsum("bhijc,hikc->bhijk", query, keys[0], preferred_element_type=wide)
            column = jnp.einsum("bhijc,hjlc->bhijl", query, keys[1], preferred_element_type=wide)
            terms["content_position"] = row[..., :, None] + column[..., None, :]
        if self.content_bias is not None:
            bias = self.content_bias[...].astype(self.dtype)
            by_key = jnp.einsum("hc,bhklc->bhkl", bias, key, preferred_element_type=wide)
            terms["position_content"] = by_key[:, :, None, None] * self.head_size**-0.5
        return terms


def by_pixels(
    by_shift: Iterable[Float[Array, "h _ ..."]], size: Grid, query_rows: Rows
) -> tuple[Float[Array, "h i k ..."], Float[Array, "h j l ..."]]:
    """Values by row shift and by column shift, looked up for every query and key of each axis."""
    look_up, queries = jax.vmap(scores.at_shifts, in_axes=(0, None)), (query_rows, jnp.arange(size[1]))
    row, column = (look_up(x, relative_positions(q, n)) for x, q, n in zip(by_shift, queries, size, strict=True))
    return row, column
