"""Encodings whose scores read the picture: content, the full relative form, absolute positions."""

import jax
import jax.numpy as jnp
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.scores import at_least_float32
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.base import Encoding, Projections, RelativeTables
from attn_cnn_jax.models.layers import linear, uniform

RELATIVE_TERMS = ("content_content", "content_position", "position_content", "position_position")


class Content(Encoding):
    """`q . k / sqrt(D_h)` with biases on `q` and `k`: what "learned + content" adds to positions."""

    depends_on_content = True

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        *,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        use_bias: bool = True,
    ):
        self.num_heads = num_heads
        features = num_heads * head_size
        self.query = linear(hidden_size, features, use_bias=use_bias, dtype=dtype, rngs=rngs)
        self.key = linear(hidden_size, features, use_bias=use_bias, dtype=dtype, rngs=rngs)

    def project(self, x: jax.Array) -> Projections:
        return Projections(split_heads(self.query(x), self.num_heads), split_heads(self.key(x), self.num_heads))

    def content_terms(self, projections: Projections, query_rows: jax.Array) -> dict[str, jax.Array]:
        return {"content": content_scores(projections.queries(query_rows), projections.key)}


class Relative(Encoding):
    """The full relative form (eq. 8), every term scaled by `1/sqrt(D_h)` and switchable by name.

    `content_content`: `X_q W_qry W_key^T X_k^T`; `content_position`: `X_q W_qry What_key^T r_delta^T`;
    `position_content`: `u^T W_key^T X_k^T`; `position_position`: `v^T What_key^T r_delta^T`,
    with `r_delta = e_row[delta_row] + e_col[delta_col]` from learned tables. Only what the chosen terms
    need has parameters; no biases.

    Attributes:
      query, key: linear maps `D -> h D_h`.
      position_key: `What_key`, `(h, D, D_h)`.
      content_bias, position_bias: `u` and `v`, `(h, D_h)`.
    """

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        tables: RelativeTables,
        *,
        terms: tuple[str, ...],
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.num_heads, self.head_size, self.terms, self.dtype = num_heads, head_size, tuple(terms), dtype
        features, param_dtype = num_heads * head_size, at_least_float32(dtype)

        def needed(*names):
            return any(name in self.terms for name in names)

        def project():
            return linear(hidden_size, features, use_bias=False, dtype=dtype, rngs=rngs)

        def parameter(shape, fan_in):
            return nnx.Param(uniform(fan_in)(rngs.params(), shape, param_dtype))

        positions = needed("content_position", "position_position")
        self.query = project() if needed("content_content", "content_position") else None
        self.key = project() if needed("content_content", "position_content") else None
        self.tables = tables if positions else None
        self.position_key = parameter((num_heads, hidden_size, head_size), hidden_size) if positions else None
        bias_shape = (num_heads, head_size)
        self.content_bias = parameter(bias_shape, head_size) if needed("position_content") else None
        self.position_bias = parameter(bias_shape, head_size) if needed("position_position") else None

    @property
    def depends_on_content(self) -> bool:
        return self.terms != ("position_position",)

    def _position_keys(self, height: int, width: int) -> tuple[jax.Array, jax.Array]:
        """`What_key^T e / sqrt(D_h)` for every row shift `(h, s, D_h)` and every column shift."""
        self.tables.check(height, width)
        scale = self.head_size**-0.5
        maps = self.position_key[...]
        return tuple(
            jnp.einsum("sd,hdo->hso", table[...], maps) * scale for table in (self.tables.row, self.tables.column)
        )

    def position_terms(self, height: int, width: int, query_rows: jax.Array) -> dict[str, jax.Array]:
        if "position_position" not in self.terms:
            return {}
        row, column = (
            jnp.einsum("ho,hso->hs", self.position_bias[...], keys) for keys in self._position_keys(height, width)
        )
        look_up = jax.vmap(scores.at_shifts, in_axes=(0, None))
        row = look_up(row, relative_positions(query_rows, height))
        column = look_up(column, relative_positions(jnp.arange(width), width))
        return {"position_position": row[:, :, None, :, None] + column[:, None, :, None, :]}

    def project(self, x: jax.Array) -> Projections:
        return Projections(
            *(None if layer is None else split_heads(layer(x), self.num_heads) for layer in (self.query, self.key))
        )

    def content_terms(self, projections: Projections, query_rows: jax.Array) -> dict[str, jax.Array]:
        if not self.depends_on_content:
            return {}
        height, width = projections.size
        dtype = at_least_float32(self.dtype)
        query = None if projections.query is None else projections.queries(query_rows)
        key = projections.key
        terms = {}
        if "content_content" in self.terms:
            terms["content_content"] = content_scores(query, key)
        if "content_position" in self.terms:
            row_keys, column_keys = (keys.astype(self.dtype) for keys in self._position_keys(height, width))
            row_keys = jax.vmap(scores.at_shifts, in_axes=(0, None))(row_keys, relative_positions(query_rows, height))
            column_keys = jax.vmap(scores.at_shifts, in_axes=(0, None))(
                column_keys, relative_positions(jnp.arange(width), width)
            )
            row = jnp.einsum("bhijo,hiko->bhijk", query, row_keys, preferred_element_type=dtype)
            column = jnp.einsum("bhijo,hjlo->bhijl", query, column_keys, preferred_element_type=dtype)
            terms["content_position"] = row[..., :, None] + column[..., None, :]
        if "position_content" in self.terms:
            bias = self.content_bias[...].astype(self.dtype)
            by_key = jnp.einsum("ho,bhklo->bhkl", bias, key, preferred_element_type=dtype)
            terms["position_content"] = by_key[:, :, None, None] * self.head_size**-0.5
        return terms


class Absolute(Content):
    """Absolute encoding (eq. 7): `(X_q + P_q) W_qry W_key^T (X_k + P_k)^T / sqrt(D_h)`, no biases.

    Attributes:
      position: `P`, `(H, W, D)`, learned from N(0, 1); or None for fixed sinusoids.
    """

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        *,
        grid: tuple[int, int] | None,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_heads, hidden_size, head_size, dtype=dtype, rngs=rngs, use_bias=False)
        shape = None if grid is None else (*grid, hidden_size)
        self.position = (
            None if grid is None else nnx.Param(jax.random.normal(rngs.params(), shape, at_least_float32(dtype)))
        )

    def project(self, x: jax.Array) -> Projections:
        return super().project(x + self.positions(x))

    def content_terms(self, projections: Projections, query_rows: jax.Array) -> dict[str, jax.Array]:
        return {"content_and_position": super().content_terms(projections, query_rows)["content"]}

    def positions(self, x: jax.Array) -> jax.Array:
        """`P` for a picture's activations `x` `(b, H, W, D)`: `(H, W, D)` in their type."""
        if self.position is None:
            return scores.sinusoidal_positions(*x.shape[1:], at_least_float32(x.dtype)).astype(x.dtype)[None]
        if self.position.shape != x.shape[1:]:
            raise UserError(
                f"a picture of {x.shape[1]}x{x.shape[2]} pixels, where learned absolute positions are for "
                f"{self.position.shape[0]}x{self.position.shape[1]}:\n"
                "create the model with this config.model.image_shape, or use a quadratic encoding (any size)"
            )
        return self.position[...].astype(x.dtype)[None]


def split_heads(x: jax.Array, num_heads: int) -> jax.Array:
    """`(b, i, j, h d) -> (b, h, i, j, d)`."""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], num_heads, -1), -2, 1)


def content_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """`(b, h, i, j, d), (b, h, k, l, d) -> (b, h, i, j, k, l)`: scores.content over heads and pictures."""
    pixels = query.shape[2:4], key.shape[2:4]
    flat = [x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in (query, key)]
    result = jax.vmap(jax.vmap(scores.content))(*flat)
    return result.reshape(*result.shape[:2], *pixels[0], *pixels[1])
