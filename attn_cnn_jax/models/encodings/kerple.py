"""KERPLE, logarithmic, one kernel per axis (Chi et al., arXiv 2205.09921)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.encoding import FactorisingEncoding, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import at_least_float32

SMALLEST = 0.01  # of what both numbers start from


@register("kerple")
class Kerple(FactorisingEncoding):
    """Logarithmic KERPLE: `score_h(delta) = sum_axis -r_1 log(1 + r_2 |delta_axis|)`, with `r_1, r_2 > 0` learned.

    Attributes:
      log_strength: `log r_1`, `(h, 2)`, row first; `r_1` starts uniform from 0.01 to 2.
      log_scale: `log r_2`, `(h, 2)`, of one over pixels; `r_2` starts uniform from 0.01 to 1.
    """

    head_axis = {"log_strength": 0, "log_scale": 0}
    not_decayed = ("log_strength", "log_scale")  # decay would pull both to one, not to zero

    def __init__(self, num_heads: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.log_strength, self.log_scale = (
            nnx.Param(
                jnp.log(jax.random.uniform(rngs.params(), (num_heads, 2), at_least_float32(dtype), SMALLEST, largest))
            )
            for largest in (2.0, 1.0)
        )

    def rescale(self, rows: float, columns: float) -> None:
        self.log_scale[...] = self.log_scale[...] - jnp.log(jnp.array([rows, columns], self.log_scale.dtype))[None]

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        strength, scale = jnp.exp(self.log_strength[...]), jnp.exp(self.log_scale[...])

        def axis(size, strength, scale):
            distance = jnp.abs(relative_positions(jnp.arange(size), size)).astype(scale.dtype)[None]
            return -strength[:, None, None] * jnp.log1p(scale[:, None, None] * distance)

        return axis(height, strength[:, 0], scale[:, 0]), axis(width, strength[:, 1], scale[:, 1])
