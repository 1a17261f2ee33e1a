"""Absolute positions (eq. 7), learned or sinusoidal, added to what queries and keys read."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.encoding import Projections, Rows, register
from attn_cnn_jax.models.encodings.content import QueryKey
from attn_cnn_jax.models.layers import at_least_float32, normal


@register("absolute_learned")
class Absolute(QueryKey):
    """Absolute encoding (eq. 7): `(X_q + P_q) W_qry W_key^T (X_k + P_k)^T / sqrt(D_h)`, no biases.

    Attributes:
      query, key: linear maps `D -> h D_h`.
      position: `P`, `(H, W, D)`, learned from N(0, 1) for a grid of pixels; or None for fixed sinusoids.
    """

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        *,
        grid: Grid | None,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_heads, hidden_size, head_size, use_bias=False, dtype=dtype, rngs=rngs)
        wide = at_least_float32(dtype)
        self.position = None if grid is None else nnx.Param(normal(rngs.params(), (*grid, hidden_size), wide))

    def rescale(self, rows: float, columns: float) -> None:
        """Learned vectors by bilinear interpolation; sinusoids stay those of the pixels."""
        if self.position is not None:
            height, width, channels = self.position.shape
            size = round(height * rows), round(width * columns), channels
            self.position = nnx.Param(jax.image.resize(self.position[...], size, "linear"))

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        return super().project(x + self.position_vectors(x))

    def content_terms(self, projections: Projections, query_rows: Rows) -> dict[str, Float[Array, "..."]]:
        return {"content_and_position": super().content_terms(projections, query_rows)["content"]}

    def position_vectors(self, x: Float[Array, "b H W d"]) -> Float[Array, "1 H W d"]:
        """`P` for the activations of an image, in their type."""
        _, height, width, channels = x.shape
        if self.position is None:
            return sinusoidal_positions(height, width, channels, at_least_float32(x.dtype)).astype(x.dtype)[None]
        if self.position.shape[:2] != (height, width):
            raise UserError(
                f"an image of {height}x{width} pixels, where learned absolute positions are for "
                f"{self.position.shape[0]}x{self.position.shape[1]}:\n"
                "create the model with this config.model.image_shape, or use a quadratic encoding (any size)"
            )
        return self.position[...].astype(x.dtype)[None]


@register("absolute_sinusoidal")
class AbsoluteSinusoidal(Absolute):
    """Absolute encoding with fixed sinusoids of the row and of the column; `D` is a multiple of four."""

    def __init__(
        self, num_heads: int, hidden_size: int, head_size: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ):
        if hidden_size % 4:
            size = f"config.model.hidden_size={hidden_size}"
            raise UserError(f"{size}: allowed is a multiple of 4 for sinusoidal positions")
        super().__init__(num_heads, hidden_size, head_size, grid=None, dtype=dtype, rngs=rngs)


def sinusoidal_positions(height: int, width: int, channels: int, dtype: jnp.dtype) -> Float[Array, "H W d"]:
    """Fixed absolute positions in two dimensions: half of the channels for the row, half for the column.

    Within a half, channels `2 n` and `2 n + 1` are sine and cosine of `position / 10000^(2 n / half)`. `d` is a
    multiple of four.
    """
    half = channels // 2

    def axis(size):
        frequency = 10000.0 ** (-2 * jnp.arange(half // 2, dtype=dtype) / half)
        angle = jnp.arange(size, dtype=dtype)[:, None] * frequency[None, :]
        return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(size, half)

    rows = jnp.broadcast_to(axis(height)[:, None], (height, width, half))
    columns = jnp.broadcast_to(axis(width)[None, :], (height, width, half))
    return jnp.concatenate([rows, columns], axis=-1)
