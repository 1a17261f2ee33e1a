"""Isotropic quadratic encoding (eq. 9): every head attends to a Gaussian around its centre."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import Encoding, FactorisingEncoding, Sizes
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.registry import register
from attn_cnn_jax.models.layers import at_least_float32


class CentredEncoding(Encoding):
    """What quadratic encodings share: parameters `centre` and `spread` of every head."""

    head_axis = {"centre": 0, "spread": 0}
    not_decayed = ("centre", "spread")  # decay would pull heads towards the query pixel and towards uniform attention
    centre: nnx.Param[Array]
    spread: nnx.Param[Array]
    circle: ClassVar[Float[np.ndarray, "..."]]  # the initial spread, before noise

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
        self.spread = nnx.Param(jnp.asarray(self.circle, param_dtype)[None] + noise)

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, **options: Any) -> Encoding:
        return cls(sizes.num_heads, dtype=sizes.dtype, rngs=rngs)

    def start_on_grid(self, centre: Float[np.ndarray, "h 2"], sharpness: float) -> None:
        """Puts heads at these centres, all with one sharpness `alpha`, in one over square pixels."""
        self.centre[...] = jnp.asarray(centre, self.centre.dtype)
        spread = np.broadcast_to(np.sqrt(2 * sharpness) * self.circle, self.spread.shape)
        self.spread[...] = jnp.asarray(spread, self.spread.dtype)


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
