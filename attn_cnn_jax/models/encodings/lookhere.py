"""LookHere: fixed fields of view, a slope over distance that falls from layer to layer (arXiv 2405.13985)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attn_cnn_jax.models.attention.encoding import Encoding, Sizes, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import at_least_float32

CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))  # quadrants, by the signs of row and column shift
LAYERS = (1.5, 0.5)  # factors of the slopes in the first and in the last layer


@register("lookhere")
class LookHere(Encoding):
    """LookHere with fields of 90 degrees: `score_h(delta) = -g m_h |delta|` in the head's quadrant, else `-infinity`.

    The query's own row and column are in the quadrant. A third of the heads, the last ones, see everything. `g` falls
    linearly over layers, from 1.5 to 0.5; `m_h` is 1/2 for the first four heads with a quadrant, 1/4 for the next four,
    and so on; 1/4, 1/16 and so on for those that see everything. Nothing is learned.

    Attributes:
      slope: `g m`, `(h,)` one over pixels.
      direction: `(h, 2)`, the signs of a quadrant, row first; 0 where either sign is seen.
    """

    head_axis = {"slope": 0, "direction": 0}
    not_decayed = ("slope", "direction")

    def __init__(self, num_heads: int, *, layer: int = 0, num_layers: int = 1, dtype: DTypeLike = jnp.float32):
        directed = num_heads - num_heads // 3
        slopes = [0.5 ** (1 + n // 4) for n in range(directed)] + [0.25 ** (1 + n) for n in range(num_heads // 3)]
        directions = [CORNERS[n % 4] for n in range(directed)] + [(0, 0)] * (num_heads // 3)
        factor = np.linspace(*LAYERS, num_layers)[layer]
        dtype = at_least_float32(dtype)
        self.slope = nnx.Param(jnp.asarray(factor * np.array(slopes), dtype))
        self.direction = nnx.Param(jnp.asarray(directions, dtype))

    @classmethod
    def create(cls, sizes: Sizes, *, rngs: nnx.Rngs, **options: Any) -> Encoding:
        return cls(sizes.num_heads, layer=sizes.layer, num_layers=sizes.num_layers, dtype=sizes.dtype)

    def rescale(self, rows: float, columns: float) -> None:
        self.slope[...] = self.slope[...] / (rows * columns) ** 0.5

    def position_terms(
        self, height: int, width: int, query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "h i j k l"]]:
        slope, direction = (
            jax.lax.stop_gradient(each[...]).reshape(-1, *shape)
            for each, shape in ((self.slope, (1, 1, 1, 1)), (self.direction, (2, 1, 1, 1, 1)))
        )
        row = relative_positions(query_rows, height).astype(slope.dtype)[None, :, None, :, None]
        column = relative_positions(jnp.arange(width), width).astype(slope.dtype)[None, None, :, None, :]
        seen = (direction[:, 0] * row >= 0) & (direction[:, 1] * column >= 0)
        return {"position": jnp.where(seen, -slope * jnp.sqrt(row**2 + column**2), -jnp.inf)}
