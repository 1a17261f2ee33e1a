"""Rotary positions on two axes: queries and keys turn with their pixel (Heo et al., arXiv 2403.13298)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.encoding import Projections, register
from attn_cnn_jax.models.encodings.content import QueryKey
from attn_cnn_jax.models.layers import at_least_float32


@register("rope")
class Rope(QueryKey):
    """Axial RoPE: `(R_q W_qry x_q) . (R_k W_key x_k) / sqrt(D_h)`, with `R` a rotation by the pixel's row and column.

    Channels `2 n` and `2 n + 1` of a head turn by the angle `f_n . (row, column)`. Of the `D_h / 2` frequencies the
    first half reads the row and the second the column, `100^(-4 n / D_h)` with `n` from 0 in each half. Since
    `R_q^T R_k = R_(k - q)`, a score depends on content and shift.

    Attributes:
      query, key: linear maps `D -> h D_h` with biases; `D_h` is a multiple of four.
      frequency: `f`, `(h, D_h / 2, 2)` radians per pixel, row first; fixed.
    """

    head_axis = {**QueryKey.head_axis, "frequency": 0}
    not_decayed = ("frequency",)
    learned = False  # whether frequencies are trained

    def __init__(
        self, num_heads: int, hidden_size: int, head_size: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ):
        if head_size % 4:
            raise UserError(f"config.model.head_size={head_size}: allowed is a multiple of 4 for rotary positions")
        super().__init__(num_heads, hidden_size, head_size, dtype=dtype, rngs=rngs)
        self.frequency = nnx.Param(self.start(num_heads, head_size, rngs).astype(at_least_float32(dtype)))

    def start(self, num_heads: int, head_size: int, rngs: nnx.Rngs) -> Float[Array, "h n 2"]:
        """The frequencies to begin with."""
        size = 100.0 ** (-4 * np.arange(head_size // 4) / head_size)
        axial = np.concatenate([np.stack([size, 0 * size], -1), np.stack([0 * size, size], -1)])
        return jnp.asarray(np.broadcast_to(axial, (num_heads, *axial.shape)))

    def rescale(self, rows: float, columns: float) -> None:
        self.frequency[...] = self.frequency[...] / jnp.array([rows, columns], self.frequency.dtype)[None, None]

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        frequency = self.frequency[...] if self.learned else jax.lax.stop_gradient(self.frequency[...])
        row, column = (jnp.arange(size).astype(frequency.dtype) for size in x.shape[1:3])
        of_row, of_column = (frequency[:, None, None, :, axis] for axis in range(2))
        angle = row[None, :, None, None] * of_row + column[None, None, :, None] * of_column
        return Projections(*(turned(heads, angle) for heads in super().project(x)))


@register("rope_mixed")
class MixedRope(Rope):
    """Mixed RoPE: as `Rope`, with frequencies of both axes, learned per layer and head.

    They start with the lengths `10^(-4 n / D_h)`, one half at an angle drawn per head, the other at a right angle.
    """

    learned = True

    def start(self, num_heads: int, head_size: int, rngs: nnx.Rngs) -> Float[Array, "h n 2"]:
        size = 10.0 ** (-4 * jnp.arange(head_size // 4) / head_size)[None, :]
        phi = jax.random.uniform(rngs.params(), (num_heads, 1), maxval=2 * jnp.pi)
        phi = jnp.concatenate([phi + 0 * size, phi + jnp.pi / 2 + 0 * size], axis=1)
        return jnp.tile(size, (1, 2))[:, :, None] * jnp.stack([jnp.cos(phi), jnp.sin(phi)], axis=-1)


def turned(x: Float[Array, "b h i j c"], angle: Float[Array, "h i j n"]) -> Float[Array, "b h i j c"]:
    """Rotates channels `2 n` and `2 n + 1` by the n-th angle, in float32 or wider."""
    even, odd = (x[..., n::2].astype(angle.dtype) for n in range(2))
    cosine, sine = jnp.cos(angle)[None], jnp.sin(angle)[None]
    return jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1).reshape(x.shape).astype(x.dtype)
