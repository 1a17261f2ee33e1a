"""Learned two-dimensional relative encoding: a vector for every row shift and for every column shift."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid, Shape
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import (
    Encoding,
    FactorisingEncoding,
    Option,
    Sizes,
    integer_from_0,
)
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.registry import register
from attn_cnn_jax.models.layers import at_least_float32, uniform


class RelativeTables(nnx.Module):
    """A vector for every row shift and one for every column shift of a picture of `(H, W)` pixels.

    Attributes:
      row: `(2 H - 1, D_p)`, starts as N(0, 1).
      column: `(2 W - 1, D_p)`, likewise.
    """

    def __init__(self, grid: Grid, position_size: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        def table(size):
            shape = (2 * size - 1, position_size)
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


POSITION_SIZE = Option(0, integer_from_0, "an integer from 0 to 100000, 0 for the hidden size")


def position_size(sizes: Sizes, options: Mapping[str, Any]) -> int:
    """Returns `D_p`, the size of a position's vector; 0 in the configuration stands for the hidden size."""
    return options.get("position_size", 0) or sizes.hidden_size


@register("learned")
class Learned(FactorisingEncoding):
    """Learned 2-D relative encoding: a row score plus a column score.

    `score_h(delta) = w_row^(h) . e_row[delta_row] + w_col^(h) . e_col[delta_col]`.

    Attributes:
      tables: the vectors `e`, this layer's own or one object for all layers.
      row_weight, column_weight: `(h, D_p)`, start uniform in `+-1/sqrt(D_p)`; no bias.
    """

    head_axis = {"row_weight": 0, "column_weight": 0}
    positions = ("row_weight", "column_weight", "tables.row", "tables.column")
    has_tables = True
    options = {"position_size": POSITION_SIZE}
    release_content = True
    # The release counts positions along a row where it says `row`: its row tables score shifts between columns.
    release = {
        "tables.row": "col_embeddings.weight",
        "tables.column": "row_embeddings.weight",
        "row_weight": "head_keys_col.weight",
        "column_weight": "head_keys_row.weight",
    }

    def __init__(
        self,
        num_heads: int,
        tables: RelativeTables,
        *,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        size = tables.row.shape[1]
        init = uniform(size)
        shape, param_dtype = (num_heads, size), at_least_float32(dtype)
        self.tables = tables
        self.row_weight = nnx.Param(init(rngs.params(), shape, param_dtype))
        self.column_weight = nnx.Param(init(rngs.params(), shape, param_dtype))

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: Any = None, **options: Any) -> Encoding:
        tables = tables or RelativeTables(sizes.grid, position_size(sizes, options), dtype=sizes.dtype, rngs=rngs)
        return cls(sizes.num_heads, tables, dtype=sizes.dtype, rngs=rngs)

    @classmethod
    def grid_in_release(cls, shapes: Mapping[str, Shape]) -> Grid:
        rows, columns = ((shapes[cls.release[f"tables.{axis}"]][0] + 1) // 2 for axis in ("row", "column"))
        return rows, columns

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        self.tables.check(height, width)

        def axis(size, table, weight):
            shift = relative_positions(jnp.arange(size), size)
            one_head = lambda w: scores.at_shifts(scores.learned_axis(table, w), shift)  # noqa: E731
            return jax.vmap(one_head)(weight)

        return (
            axis(height, self.tables.row[...], self.row_weight[...]),
            axis(width, self.tables.column[...], self.column_weight[...]),
        )
