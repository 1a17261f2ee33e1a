"""Learned two-dimensional relative encoding: a vector for every row shift and for every column shift."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import FactorisingEncoding, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import at_least_float32, normal, uniform
from attn_cnn_jax.options import POSITION_SIZE


class RelativeTables(nnx.Module):
    """A vector for every row shift, `row` `(2 H - 1, D_p)`, and one for every column shift, `column` `(2 W - 1, D_p)`.

    They start as N(0, 1), and serve images of at most `(H, W)` pixels.
    """

    def __init__(self, grid: Grid, position_size: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.row, self.column = (
            nnx.Param(normal(rngs.params(), (2 * size - 1, position_size), at_least_float32(dtype))) for size in grid
        )

    @property
    def grid(self) -> Grid:
        """Rows and columns of the largest image that the tables reach across."""
        return (self.row.shape[0] + 1) // 2, (self.column.shape[0] + 1) // 2

    def rescale(self, rows: float, columns: float) -> None:
        """Tables for so many times the pixels, by interpolation between shifts."""
        for name, scale in (("row", rows), ("column", columns)):
            table = getattr(self, name)[...]
            reach = len(table) // 2
            wanted = round((reach + 1) * scale) - 1
            at, known = np.arange(-wanted, wanted + 1) / scale, np.arange(-reach, reach + 1)
            interpolate = jax.vmap(jnp.interp, (None, None, 1), 1)
            table = interpolate(jnp.asarray(at, table.dtype), jnp.asarray(known, table.dtype), table)
            setattr(self, name, nnx.Param(table))

    def check(self, height: int, width: int) -> None:
        """Raises UserError for an image larger than the tables."""
        rows, columns = self.grid
        if height > rows or width > columns:
            raise UserError(
                f"an image of {height}x{width} pixels, where learned relative positions reach {rows}x{columns}:\n"
                "create the model with this config.model.image_shape, or use a quadratic encoding (any size)"
            )


@register("learned")
class Learned(FactorisingEncoding):
    """Learned 2-D relative encoding: a row score plus a column score.

    `score_h(delta) = w_row^(h) . e_row[delta_row] + w_col^(h) . e_col[delta_col]`.

    Attributes:
      tables: the vectors `e`, of `D_p` channels, for an image of at most `grid` pixels.
      row_weight, column_weight: `(h, D_p)`, start uniform in `+-1/sqrt(D_p)`; no bias.
    """

    options = {"position_size": POSITION_SIZE}
    head_axis = {"row_weight": 0, "column_weight": 0}

    def __init__(
        self, num_heads: int, grid: Grid, position_size: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ):
        self.tables = RelativeTables(grid, position_size, dtype=dtype, rngs=rngs)
        self.row_weight, self.column_weight = (
            nnx.Param(uniform(position_size)(rngs.params(), (num_heads, position_size), at_least_float32(dtype)))
            for _ in range(2)
        )

    def rescale(self, rows: float, columns: float) -> None:
        self.tables.rescale(rows, columns)

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        self.tables.check(height, width)

        def axis(size, table, weight):
            shift = relative_positions(jnp.arange(size), size)
            return jax.vmap(lambda w: scores.at_shifts(jnp.einsum("sd,d->s", table, w), shift))(weight)

        return (
            axis(height, self.tables.row[...], self.row_weight[...]),
            axis(width, self.tables.column[...], self.column_weight[...]),
        )
