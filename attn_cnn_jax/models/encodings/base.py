"""How a score knows about positions: one Flax module an encoding, thin over scores.py.

Here what all encodings answer, and those of positions alone; those that read the picture: content_encodings.py.
An encoding adds up to two kinds of score terms, each under a name:
`position_terms`, of the two pixels alone, and `content_terms`, of what the picture shows there.
Factorising encodings give `axis_scores`: a row and a column score that add up to the whole.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.scores import at_least_float32
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import uniform


class Projections(NamedTuple):
    """What scores read of pictures: queries and keys of all heads, `(b, h, H, W, D_h)`; None where unused."""

    query: jax.Array | None = None
    key: jax.Array | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        return (self.key if self.query is None else self.query).shape[2:4]

    def queries(self, rows: jax.Array) -> jax.Array:
        """Queries of rows `(i,)` that follow each other: `(b, h, i, W, D_h)`."""
        # A slice: looking each row up costs more than the scores where all rows are asked for, as they mostly are.
        return jax.lax.dynamic_slice_in_dim(self.query, rows[0], len(rows), axis=2)


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
        """Scores that depend on the picture, by name; they broadcast to `(b, h, i, j, k, l)`.

        Args:
          query_rows: `(i,)`, rows that follow each other.
        """
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
