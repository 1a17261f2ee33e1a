"""Absolute positions (eq. 7), learned or sinusoidal: added to what queries and keys read."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import Encoding, MultiplyAdds, Projections, Sizes
from attn_cnn_jax.models.encodings.content import Content, content_multiply_adds, page_map
from attn_cnn_jax.models.encodings.registry import register
from attn_cnn_jax.models.layers import at_least_float32


class Absolute(Content):
    """Absolute encoding (eq. 7): `(X_q + P_q) W_qry W_key^T (X_k + P_k)^T / sqrt(D_h)`, no biases.

    Attributes:
      position: `P`, `(H, W, D)`, learned from N(0, 1); or None for fixed sinusoids.
    """

    head_axis = {"query.kernel": 1, "key.kernel": 1}
    release = {}

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
        super().__init__(num_heads, hidden_size, head_size, dtype=dtype, rngs=rngs, use_bias=False)
        shape = None if grid is None else (*grid, hidden_size)
        self.position = (
            None if shape is None else nnx.Param(jax.random.normal(rngs.params(), shape, at_least_float32(dtype)))
        )

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        return super().project(x + self.position_vectors(x))

    def content_terms(self, projections: Projections, query_rows: Int[Array, " i"]) -> dict[str, Float[Array, "..."]]:
        return {"content_and_position": super().content_terms(projections, query_rows)["content"]}

    def position_vectors(self, x: Float[Array, "b H W d"]) -> Float[Array, "1 H W d"]:
        """`P` for the activations of a picture, in their type."""
        if self.position is None:
            _, height, width, channels = x.shape
            vectors = scores.sinusoidal_positions(height, width, channels, at_least_float32(x.dtype))
            return vectors.astype(x.dtype)[None]
        if self.position.shape != x.shape[1:]:
            raise UserError(
                f"a picture of {x.shape[1]}x{x.shape[2]} pixels, where learned absolute positions are for "
                f"{self.position.shape[0]}x{self.position.shape[1]}:\n"
                "create the model with this config.model.image_shape, or use a quadratic encoding (any size)"
            )
        return self.position[...].astype(x.dtype)[None]

    def page_content(self, grid: Grid) -> dict[str, Any] | None:
        pixels = jnp.zeros((1, *grid, self.query.in_features), self.query.kernel[...].dtype)
        maps = {"query": page_map(self.query), "key": page_map(self.key)}
        return {
            "add": self.position_vectors(pixels)[0],
            **maps,
            "terms": {"content_and_position": {"kind": "product"}},
        }

    @classmethod
    def multiply_adds(cls, sizes: Sizes, options: Mapping[str, Any]) -> MultiplyAdds:
        return content_multiply_adds(sizes.grid, sizes.hidden_size, sizes.head_size)


@register("absolute_learned")
class AbsoluteLearned(Absolute):
    """Absolute encoding with a learned vector for every pixel."""

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> Encoding:
        return cls(*sizes[:3], grid=sizes.grid, dtype=sizes.dtype, rngs=rngs)


@register("absolute_sinusoidal")
class AbsoluteSinusoidal(Absolute):
    """Absolute encoding with fixed sinusoids of the row and of the column."""

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> Encoding:
        return cls(*sizes[:3], grid=None, dtype=sizes.dtype, rngs=rngs)

    @classmethod
    def refusal(cls, model: Mapping[str, Any]) -> tuple[str, str] | None:
        return ("hidden_size", "a multiple of 4 for sinusoidal positions") if model["hidden_size"] % 4 else None
