"""A table of scores over shifts, one per head: any pattern of attention that depends on the shift alone."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.models.attention.encoding import Encoding, PositionTerms, Rows
from attn_cnn_jax.models.attention.scores import softmax
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import at_least_float32

NONE = -1e30  # a score in place of minus infinity: its probability is zero beside any other score, and never 0/0


class ShiftTable(Encoding):
    """`score_h(delta) = t_h[delta]` in a window of shifts, one score everywhere else.

    Attributes:
      score: `t`, `(h, R, C)`; entry `(r, c)` is of shift `(r - (R - 1) // 2, c - (C - 1) // 2)`, as of a kernel.
      outside: the score of all other shifts; `NONE` for no attention there.
    """

    head_axis = {"score": 0}

    def __init__(self, score: Float[AnyArray, "h R C"], outside: float = NONE, *, dtype: DTypeLike = jnp.float32):
        self.score = nnx.Param(jnp.asarray(score, at_least_float32(dtype)))
        self.outside = outside

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        rows, columns = self.score.shape[1:]
        row = relative_positions(query_rows, height)[:, None, :, None] + (rows - 1) // 2
        column = relative_positions(jnp.arange(width), width)[None, :, None, :] + (columns - 1) // 2
        score = self.score[...].at[:, row, column]
        return {"position": score.get(mode="fill", fill_value=self.outside, wrap_negative_indices=False)}

    def window(self) -> Float[Array, "h R C"]:
        """Attention on every shift of the window where there is none outside."""
        table = self.score[...]
        return softmax(table.reshape(len(table), -1)).reshape(table.shape)
