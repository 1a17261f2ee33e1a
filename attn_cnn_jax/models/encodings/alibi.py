"""ALiBi on two axes: scores fall linearly with distance, by a fixed slope per head (Press et al., 2108.12409)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.encoding import Encoding, FactorisingEncoding, PositionTerms, Rows, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import at_least_float32


@register("alibi")
class Alibi(Encoding):
    """ALiBi with the Euclidean distance: `score_h(delta) = -m_h |delta|`, `m_h = 2^(-8 h / N_h)`, `h` from 1.

    Attributes:
      slope: `m`, `(h,)` one over pixels; fixed.
    """

    head_axis = {"slope": 0}
    not_decayed = ("slope",)

    def __init__(self, num_heads: int, *, dtype: DTypeLike = jnp.float32):
        slopes = 2.0 ** (-8 * np.arange(1, num_heads + 1) / num_heads)
        self.slope = nnx.Param(jnp.asarray(slopes, at_least_float32(dtype)))

    def rescale(self, rows: float, columns: float) -> None:
        self.slope[...] = self.slope[...] / (rows * columns) ** 0.5

    def scores_of(self, distance: Float[Array, "*#pixels"]) -> Float[Array, "h *#pixels"]:
        """Scores of all heads at distances in pixels."""
        slope = jax.lax.stop_gradient(self.slope[...])
        return -slope.reshape(-1, *(1,) * distance.ndim) * distance[None]

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        row = relative_positions(query_rows, height)[:, None, :, None]
        column = relative_positions(jnp.arange(width), width)[None, :, None, :]
        return {"position": self.scores_of(jnp.sqrt((row**2 + column**2).astype(self.slope.dtype)))}


@register("alibi_manhattan")
class ManhattanAlibi(FactorisingEncoding, Alibi):
    """ALiBi with the Manhattan distance, which factorises: `score_h(delta) = -m_h (|delta_row| + |delta_column|)`."""

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        row, column = (
            self.scores_of(jnp.abs(relative_positions(jnp.arange(size), size)).astype(self.slope.dtype))
            for size in (height, width)
        )
        return row, column
