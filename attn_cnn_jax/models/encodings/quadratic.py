"""Isotropic quadratic encoding (eq. 9): every head attends to a Gaussian around its centre."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid, Shape
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import Encoding, FactorisingEncoding, Sizes
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.registry import register
from attn_cnn_jax.models.layers import at_least_float32

SMALLEST_PRECISION = 1e-5  # one over square pixels; below it the release calls a head degenerate


class CentredEncoding(Encoding):
    """What quadratic encodings share: parameters `centre` and `spread` of every head."""

    head_axis = {"centre": 0, "spread": 0}
    positions = ("centre", "spread")
    not_decayed = ("centre", "spread")  # decay would pull heads towards the query pixel and towards uniform attention
    release = {"centre": "attention_centers", "spread": "attention_spreads"}
    circle: ClassVar[Float[np.ndarray, "..."]]  # the initial spread, before noise

    centre: nnx.Param
    spread: nnx.Param

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, tables: nnx.Module | None = None, **options: Any) -> Encoding:
        return cls(sizes.num_heads, **options, dtype=sizes.dtype, rngs=rngs)

    def __init__(
        self,
        num_heads: int,
        *,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        param_dtype = at_least_float32(dtype)
        self.centre = nnx.Param(2.0 * jax.random.normal(rngs.params(), (num_heads, 2), param_dtype))
        noise = 0.01 * jax.random.normal(rngs.params(), (num_heads, *self.circle.shape), param_dtype)
        self.spread = nnx.Param(self.circle.astype(param_dtype)[None] + noise)

    def start_on_grid(self, centre: Float[np.ndarray, "h 2"], sharpness: float) -> None:
        self.centre[...] = jnp.asarray(centre, self.centre.dtype)
        spread = np.broadcast_to(np.sqrt(2 * sharpness) * self.circle, self.spread.shape)
        self.spread[...] = jnp.asarray(spread, self.spread.dtype)

    @classmethod
    def in_release(cls, shapes: Mapping[str, Shape]) -> bool:
        return super().in_release(shapes) and len(shapes[cls.release["spread"]]) == 1 + cls.circle.ndim

    def centres(self) -> Float[np.ndarray, "h 2"]:
        return np.asarray(self.centre[...], np.float64)

    def recorded(self) -> dict[str, Float[np.ndarray, "..."]]:
        return {"centre": np.asarray(self.centre[...]), "spread": np.asarray(self.spread[...])}

    def degenerate_heads(self, grid: Grid) -> dict[int, str]:
        spreads = np.asarray(self.spread[...], np.float64)
        return {head: why for head, spread in enumerate(spreads) if (why := self.reason(spread))}

    @staticmethod
    def reason(spread: Float[np.ndarray, "..."]) -> str:
        """Returns why a head with this spread is degenerate; "" if it is not."""
        raise NotImplementedError


@register("quadratic")
class Quadratic(FactorisingEncoding, CentredEncoding):
    """Isotropic quadratic encoding (eq. 9): `score_h(delta) = -alpha_h |delta - Delta_h|^2`, `alpha = s^2 / 2`.

    Attributes:
      centre: `Delta`, `(h, 2)` pixels, row first; starts as N(0, 2^2).
      spread: `s`, `(h,)` one over pixels; starts as 1 + N(0, 0.01^2).
    """

    circle = np.ones(())

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        def axis(size, centre):
            shift = relative_positions(jnp.arange(size), size).astype(centre.dtype)
            return jax.vmap(scores.quadratic_axis, in_axes=(None, 0, 0))(shift, centre, self.spread[...])

        return axis(height, self.centre[..., 0]), axis(width, self.centre[..., 1])

    def measures(self) -> dict[str, Float[np.ndarray, " h"]]:
        return {"spread": np.asarray(self.spread[...], np.float64)}

    @staticmethod
    def reason(spread: float | np.ndarray) -> str:
        """Returns "uniform" with the number where `s^2` is below the release's threshold."""
        precision = spread**2
        return f"uniform: s^2 {precision:.1e} < 1e-05" if precision < SMALLEST_PRECISION else ""
