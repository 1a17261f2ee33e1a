"""Absolute positions (eq. 7), learned or sinusoidal: added to what queries and keys read, or beside it."""

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
from attn_cnn_jax.models.attention.encoding import Encoding, Option, Projections, Sizes
from attn_cnn_jax.models.encodings.content import Content
from attn_cnn_jax.models.encodings.learned import POSITION_SIZE, position_size
from attn_cnn_jax.models.encodings.registry import register
from attn_cnn_jax.models.layers import at_least_float32

JOINS = ("add", "concatenate")


class Absolute(Content):
    """Absolute encoding (eq. 7): `(X_q + P_q) W_qry W_key^T (X_k + P_k)^T / sqrt(D_h)`, no biases.

    Or with `[X_q, P_q]`, the two concatenated, in place of the sum.

    Attributes:
      position: `P`, `(H, W, D_p)`, learned from N(0, 1); or None for fixed sinusoids.
      position_size: `D_p`, which is `D` where `P` is added.
      concatenated: whether `P` stands beside `X` instead.
    """

    head_axis = {"query.kernel": 1, "key.kernel": 1}
    options = {
        "position_join": Option("add", lambda value: value in JOINS, f"one of {', '.join(JOINS)}"),
        "position_size": POSITION_SIZE,
    }
    release = {}

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        *,
        grid: Grid | None,
        position_size: int | None = None,
        concatenated: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Creates the query and key maps, and the learned positions.

        Args:
          num_heads: `N_h`.
          hidden_size: `D`.
          head_size: `D_h`.
          grid: rows and columns of learned positions; None for sinusoids.
          position_size: `D_p` where positions are concatenated; None for `D`.
          concatenated: whether `P` stands beside `X` instead of being added.
          dtype: of activations.
          rngs: source of the initial parameters.
        """
        self.position_size, self.concatenated = position_size or hidden_size, concatenated
        inputs = hidden_size + self.position_size if concatenated else hidden_size
        super().__init__(num_heads, inputs, head_size, dtype=dtype, rngs=rngs, use_bias=False)
        shape = None if grid is None else (*grid, self.position_size)
        self.position = (
            None if shape is None else nnx.Param(jax.random.normal(rngs.params(), shape, at_least_float32(dtype)))
        )

    def joined(self, x: Float[Array, "b H W d"], position: Float[Array, "1 H W p"]) -> Float[Array, "b H W e"]:
        """Returns what queries and keys read."""
        if not self.concatenated:
            return x + position
        return jnp.concatenate([x, jnp.broadcast_to(position, (*x.shape[:3], self.position_size))], axis=-1)

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        return super().project(self.joined(x, self.position_vectors(x)))

    def content_terms(self, projections: Projections, query_rows: Int[Array, " i"]) -> dict[str, Float[Array, "..."]]:
        return {"content_and_position": super().content_terms(projections, query_rows)["content"]}

    def separate_terms(
        self, x: Float[Array, "b H W d"], query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "..."]]:
        position = self.position_vectors(x)
        alone = {
            "content": super().project(self.joined(x, jnp.zeros_like(position))),
            "position": super().project(self.joined(jnp.zeros_like(x), position)),
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
            _, height, width, _ = x.shape
            vectors = scores.sinusoidal_positions(height, width, self.position_size, at_least_float32(x.dtype))
            return vectors.astype(x.dtype)[None]
        if self.position.shape[:2] != x.shape[1:3]:
            raise UserError(
                f"a picture of {x.shape[1]}x{x.shape[2]} pixels, where learned absolute positions are for "
                f"{self.position.shape[0]}x{self.position.shape[1]}:\n"
                "create the model with this config.model.image_shape, or use a quadratic encoding (any size)"
            )
        return self.position[...].astype(x.dtype)[None]

    @classmethod
    def create_on(cls, grid: Grid | None, sizes: Sizes, rngs: nnx.Rngs, options: Mapping[str, Any]) -> Encoding:
        """Returns the encoding of one layer, with learned positions on a grid or with sinusoids."""
        return cls(
            *sizes[:3],
            grid=grid,
            position_size=position_size(sizes, options),
            concatenated=options.get("position_join", "add") == "concatenate",
            dtype=sizes.dtype,
            rngs=rngs,
        )

    @classmethod
    def refusal(cls, model: Mapping[str, Any]) -> tuple[str, str] | None:
        if model["position_join"] == "add" and model["position_size"] not in (0, model["hidden_size"]):
            return "position_size", "0 where positions are added, config.model.position_join='add'"
        return None


@register("absolute_learned")
class AbsoluteLearned(Absolute):
    """Absolute encoding with a learned vector for every pixel."""

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> Encoding:
        return cls.create_on(sizes.grid, sizes, rngs, options)


@register("absolute_sinusoidal")
class AbsoluteSinusoidal(Absolute):
    """Absolute encoding with fixed sinusoids of the row and of the column."""

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> Encoding:
        return cls.create_on(None, sizes, rngs, options)

    @classmethod
    def refusal(cls, model: Mapping[str, Any]) -> tuple[str, str] | None:
        key = "position_size" if model["position_join"] == "concatenate" and model["position_size"] else "hidden_size"
        if model[key] % 4:
            return key, "a multiple of 4 for sinusoidal positions"
        return super().refusal(model)
