"""How a score knows about positions: one Flax module an encoding, thin over scores.py.

An encoding adds up to two kinds of score terms, each under a name:
`position_terms`, of the two pixels alone, and `content_terms`, of what the picture shows there.
Factorising encodings give `axis_scores`: a row and a column score that add up to the whole.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import scores
from attn_cnn_jax.models.layers import linear, uniform
from attn_cnn_jax.models.scores import at_least_float32
from attn_cnn_jax.models.shifts import relative_positions

RELATIVE_TERMS = ("content_content", "content_position", "position_content", "position_position")


class Projections(NamedTuple):
    """What scores read of pictures: queries and keys of all heads, `(b, H, W, h, D_h)`; None where unused."""

    query: jax.Array | None = None
    key: jax.Array | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        return (self.key if self.query is None else self.query).shape[1:3]


class Encoding(nnx.Module):
    """What every encoding answers; an encoding overrides what applies to it."""

    factorises = False
    depends_on_content = False

    def position_terms(self, height: int, width: int, query_rows: jax.Array) -> dict[str, jax.Array]:
        """Scores of the pixels in `query_rows` `(i,)`, by name: `(h, i, j, k, l)`."""
        return {}

    def project(self, x: jax.Array) -> "Projections":
        """Queries and keys of pictures `(b, H, W, D)`."""
        return Projections()

    def content_terms(self, projections: "Projections", query_rows: jax.Array) -> dict[str, jax.Array]:
        """Scores that depend on the picture, by name, of these queries; broadcast to `(b, h, i, j, k, l)`."""
        return {}


class FactorisingEncoding(Encoding):
    """An encoding whose score is a row score plus a column score: its softmax factorises exactly."""

    factorises = True

    def axis_scores(self, height: int, width: int) -> tuple[jax.Array, jax.Array]:
        """Row scores `(h, i, k)` and column scores `(h, j, l)`."""
        raise NotImplementedError

    def position_terms(self, height: int, width: int, query_rows: jax.Array) -> dict[str, jax.Array]:
        row, column = self.axis_scores(height, width)
        return {"position": row[:, query_rows][:, :, None, :, None] + column[:, None, :, None, :]}


class Quadratic(FactorisingEncoding):
    """Isotropic quadratic encoding (eq. 9): `score_h(delta) = -alpha_h |delta - Delta_h|^2`, `alpha = s^2 / 2`.

    Attributes:
      centre: `Delta`, `(h, 2)` pixels, row first; starts as N(0, 2^2).
      spread: `s`, `(h,)` one over pixels; starts as 1 + N(0, 0.01^2).
    """

    def __init__(self, num_heads: int, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        param_dtype = at_least_float32(dtype)
        self.centre = nnx.Param(2 * jax.random.normal(rngs.params(), (num_heads, 2), param_dtype))
        self.spread = nnx.Param(1 + 0.01 * jax.random.normal(rngs.params(), (num_heads,), param_dtype))

    def axis_scores(self, height: int, width: int) -> tuple[jax.Array, jax.Array]:
        def axis(size, centre):
            shift = relative_positions(jnp.arange(size), size).astype(centre.dtype)
            return jax.vmap(scores.quadratic_axis, in_axes=(None, 0, 0))(shift, centre, self.spread[...])

        return axis(height, self.centre[..., 0]), axis(width, self.centre[..., 1])


class GeneralizedQuadratic(Encoding):
    """Generalised quadratic encoding: `-1/2 (delta - mu_h)^T Sigma_h^-1 (delta - mu_h)`, `Sigma^-1 = S S^T`.

    Attributes:
      centre: `mu`, `(h, 2)` pixels, row first; starts as N(0, 2^2).
      spread: `S`, `(h, 2, 2)` one over pixels; starts as I + N(0, 0.01^2).
    """

    def __init__(self, num_heads: int, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        param_dtype = at_least_float32(dtype)
        self.centre = nnx.Param(2 * jax.random.normal(rngs.params(), (num_heads, 2), param_dtype))
        noise = 0.01 * jax.random.normal(rngs.params(), (num_heads, 2, 2), param_dtype)
        self.spread = nnx.Param(jnp.eye(2, dtype=param_dtype)[None] + noise)

    def position_terms(self, height: int, width: int, query_rows: jax.Array) -> dict[str, jax.Array]:
        centre, spread = self.centre[...], self.spread[...]
        row = relative_positions(query_rows, height).astype(centre.dtype)[:, None, :, None]
        column = relative_positions(jnp.arange(width), width).astype(centre.dtype)[None, :, None, :]
        return {"position": jax.vmap(scores.gaussian, in_axes=(None, None, 0, 0))(row, column, centre, spread)}


class RelativeTables(nnx.Module):
    """A vector for every row shift and one for every column shift of a picture of `(H, W)` pixels.

    Attributes:
      row: `(2 H - 1, D)`, starts as N(0, 1).
      column: `(2 W - 1, D)`, likewise.
    """

    def __init__(self, grid: tuple[int, int], hidden_size: int, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        def table(size):
            shape = (2 * size - 1, hidden_size)
            return nnx.Param(jax.random.normal(rngs.params(), shape, at_least_float32(dtype)))

        self.row, self.column = table(grid[0]), table(grid[1])

    def check(self, height: int, width: int) -> None:
        """Raises UserError for a picture larger than the tables."""
        rows, columns = ((table.shape[0] + 1) // 2 for table in (self.row, self.column))
        if height > rows or width > columns:
            raise UserError(
                f"a picture of {height}x{width} pixels, where learned relative positions reach {rows}x{columns}:\n"
                "create the model with this config.model.image_shape, or use a quadratic encoding (any size)"
            )


class Learned(FactorisingEncoding):
    """Learned 2-D relative: `score_h(delta) = w_row^(h) . e_row[delta_row] + w_col^(h) . e_col[delta_col]`.

    Attributes:
      tables: the vectors `e`, this layer's own or one object for all layers.
      row_weight, column_weight: `(h, D)`, start uniform in `+-1/sqrt(D)`; no bias.
    """

    def __init__(self, num_heads: int, hidden_size: int, tables: RelativeTables, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        init = uniform(hidden_size)
        shape, param_dtype = (num_heads, hidden_size), at_least_float32(dtype)
        self.tables = tables
        self.row_weight = nnx.Param(init(rngs.params(), shape, param_dtype))
        self.column_weight = nnx.Param(init(rngs.params(), shape, param_dtype))

    def axis_scores(self, height: int, width: int) -> tuple[jax.Array, jax.Array]:
        self.tables.check(height, width)

        def axis(size, table, weight):
            shift = relative_positions(jnp.arange(size), size)
            one_head = lambda w: scores.at_shifts(scores.learned_axis(table, w), shift)  # noqa: E731
            return jax.vmap(one_head)(weight)

        return (
            axis(height, self.tables.row[...], self.row_weight[...]),
            axis(width, self.tables.column[...], self.column_weight[...]),
        )


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
        return {"content": content_scores(projections.query[:, query_rows], projections.key)}


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
        query = None if projections.query is None else projections.query[:, query_rows]
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
            row = jnp.einsum("bijho,hiko->bhijk", query, row_keys, preferred_element_type=dtype)
            column = jnp.einsum("bijho,hjlo->bhijl", query, column_keys, preferred_element_type=dtype)
            terms["content_position"] = row[..., :, None] + column[..., None, :]
        if "position_content" in self.terms:
            bias = self.content_bias[...].astype(self.dtype)
            by_key = jnp.einsum("ho,bklho->bhkl", bias, key, preferred_element_type=dtype)
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
    """`(b, i, j, h d) -> (b, i, j, h, d)`."""
    return x.reshape(*x.shape[:-1], num_heads, -1)


def content_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """`(b, i, j, h, d), (b, k, l, h, d) -> (b, h, i, j, k, l)`: scores.content over heads and pictures."""
    batch, rows, columns, heads, size = query.shape
    height, width = key.shape[1:3]
    over_heads = jax.vmap(scores.content, in_axes=(1, 1))
    flat = jax.vmap(over_heads)(
        query.reshape(batch, rows * columns, heads, size), key.reshape(batch, height * width, heads, size)
    )
    return flat.reshape(batch, heads, rows, columns, height, width)
