"""Absolute positions (eq. 7), learned or sinusoidal, added to what queries and keys read."""

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
from attn_cnn_jax.models.attention.encoding import Encoding, Projections, Sizes
from attn_cnn_jax.models.encodings.content import Content
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
        """Creates the query and key maps, and the learned positions.

        Args:
          num_heads: `N_h`.
          hidden_size: `D`.
          head_size: `D_h`.
          grid: rows and columns of learned positions; None for sinusoids.
          dtype: of activations.
          rngs: source of the initial parameters.
        """
        super().__init__(num_heads, hidden_size, head_size, dtype=dtype, rngs=rngs, use_bias=False)
        shape = None if grid is None else (*grid, hidden_size)
        self.position = (
            None if shape is None else nnx.Param(jax.random.normal(rngs.params(), shape, at_least_float32(dtype)))
        )

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        return super().project(x + self.position_vectors(x))

    def content_terms(self, projections: Projections, query_rows: Int[Array, " i"]) -> dict[str, Float[Array, "..."]]:
        return {"content_and_position": super().content_terms(projections, query_rows)["content"]}

    def separate_terms(
        self, x: Float[Array, "b H W d"], query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "..."]]:
        position = self.position_vectors(x)
        alone = {
            "content": super().project(x),
            "position": super().project(jnp.zeros_like(x) + position),
        }
        terms = {}
        for q, queries in alone.items():
            for k, keys in alone.items():
                both = Projections(queries.query, keys.key)
                terms[f"{q}_{k}"] = super().content_terms(both, query_rows)["content"]
        return terms

    def position_vectors(self, x: Float[Array, "b H W d"]) -> Float[Array, "1 H W p"]:
        """Returns `P` for the activations of a picture, in their type."""
        if self.position is None:
            _, height, width, channels = x.shape
            vectors = scores.sinusoidal_positions(height, width, channels, at_least_float32(x.dtype))
            return vectors.astype(x.dtype)[None]
        if self.position.shape[:2] != x.shape[1:3]:
            raise UserError(
                f"a picture of {x.shape[1]}x{x.shape[2]} pixels, where learned absolute positions are for "
                f"{self.position.shape[0]}x{self.position.shape[1]}:\n"
                "create the model with this config.model.image_shape, or use a quadratic encoding (any size)"
            )
        return self.position[...].astype(x.dtype)[None]

    @classmethod
    def create_on(cls, grid: Grid | None, sizes: Sizes, rngs: nnx.Rngs) -> Encoding:
        """Returns the encoding of one layer, with learned positions on a grid or with sinusoids."""
        return cls(
            *sizes[:3],
            grid=grid,
            dtype=sizes.dtype,
            rngs=rngs,
        )


@register("absolute_learned")
class AbsoluteLearned(Absolute):
    """Absolute encoding with a learned vector for every pixel."""

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> Encoding:
        return cls.create_on(sizes.grid, sizes, rngs)


@register("absolute_sinusoidal")
class AbsoluteSinusoidal(Absolute):
    """Absolute encoding with fixed sinusoids of the row and of the column."""

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> Encoding:
        return cls.create_on(None, sizes, rngs)

    @classmethod
    def refusal(cls, model: Mapping[str, Any]) -> tuple[str, str] | None:
        if model["hidden_size"] % 4:
            return "hidden_size", "a multiple of 4 for sinusoidal positions"
        return None
