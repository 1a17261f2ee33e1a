"""LookHere: fixed fields of view, a slope over distance that falls from layer to layer (arXiv 2405.13985)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from attn_cnn_jax.models.attention.encoding import PositionTerms, Rows, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.alibi import Alibi

CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))  # quadrants, by the signs of row and column shift
LAYERS = (1.5, 0.5)  # factors of the slopes in the first and in the last layer


@register("lookhere")
class LookHere(Alibi):
    """LookHere with fields of 90 degrees: `score_h(delta) = -g m_h |delta|` in the head's quadrant, else `-infinity`.

    The query's own row and column are in the quadrant. Two rounds of the four quadrants (one below eight heads) come
    first, all other heads see everything, as in the authors' networks of 6, 12 and 16 heads. `g` falls linearly over
    layers, from 1.5 to 0.5; `m_h` is 1/2 in the first round, 1/4 in the second; 1/4, 1/16, 1/64 and 1/256 for those
    that see everything, each for a quarter of them. Nothing is learned.

    Attributes:
      slope: `g m`, `(h,)` one over pixels.
      direction: `(h, 2)`, the signs of a quadrant, row first; 0 where either sign is seen.
    """

    head_axis = {"slope": 0, "direction": 0}
    not_decayed = ("slope", "direction")

    def __init__(self, num_heads: int, *, layer: int = 0, num_layers: int = 1, dtype: DTypeLike = jnp.float32):
        super().__init__(num_heads, dtype=dtype)
        directed = min(2, num_heads // len(CORNERS)) * len(CORNERS)
        everywhere = num_heads - directed
        slopes = [0.5 ** (1 + n // 4) for n in range(directed)]
        slopes += [0.25 ** (1 + 4 * n // max(4, everywhere)) for n in range(everywhere)]
        directions = [CORNERS[n % 4] for n in range(directed)] + [(0, 0)] * everywhere
        self.slope[...] = jnp.asarray(np.linspace(*LAYERS, num_layers)[layer] * np.array(slopes), self.slope.dtype)
        self.direction = nnx.Param(jnp.asarray(directions, self.slope.dtype))

    def position_terms(self, height: int, width: int, query_rows: Rows) -> PositionTerms:
        direction = jax.lax.stop_gradient(self.direction[...]).reshape(-1, 2, 1, 1, 1, 1)
        row = relative_positions(query_rows, height).astype(direction.dtype)[None, :, None, :, None]
        column = relative_positions(jnp.arange(width), width).astype(direction.dtype)[None, None, :, None, :]
        seen = (direction[:, 0] * row >= 0) & (direction[:, 1] * column >= 0)
        (distances,) = super().position_terms(height, width, query_rows).values()
        return {"position": jnp.where(seen, distances, -jnp.inf)}
