"""FIRE, functional interpolation for relative encodings, one function per axis (Li et al., arXiv 2310.04418)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.models.attention.encoding import FactorisingEncoding, register
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.layers import at_least_float32, flattened, linear

HIDDEN = 32  # channels of the small network
SCALE = 0.1  # what `c` starts from, one over pixels


class Axis(nnx.Module):
    """`f(psi(|k - i|) / psi(max(L, reach_i)))`, `psi(x) = log(c x + 1)`, of one axis.

    `reach_i` is the distance from query `i` to the farthest pixel of the axis: `i` itself in text, where keys come
    before queries. `f` has one hidden layer of 32 channels with relu; a bias of its output would not change a softmax.

    Attributes:
      scale: `c`, one over pixels; starts at 0.1 and counts without its sign.
      threshold: `L`, pixels; starts at the axis' largest distance and counts without its sign.
      hidden, output: linear maps `1 -> 32 -> h`.
    """

    def __init__(self, num_heads: int, size: int, dtype: DTypeLike, rngs: nnx.Rngs):
        dtype = at_least_float32(dtype)
        self.scale = nnx.Param(jnp.asarray(SCALE, dtype))
        self.threshold = nnx.Param(jnp.asarray(max(1, size - 1), dtype))
        self.hidden = linear(1, HIDDEN, dtype=dtype, rngs=rngs)
        self.output = linear(HIDDEN, num_heads, use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, size: int) -> Float[Array, "h i k"]:
        """Scores of an axis of `size` pixels."""
        pixels = jnp.arange(size)
        distance = jnp.abs(relative_positions(pixels, size)).astype(self.scale.dtype)
        reach = jnp.maximum(jnp.abs(self.threshold[...]), distance.max(axis=1))
        distance, reach = (jnp.log1p(jnp.abs(self.scale[...]) * x) for x in (distance, reach))
        x = (distance / reach[:, None])[:, :, None]
        return jnp.moveaxis(flattened(lambda x: self.output(jax.nn.relu(self.hidden(x))), x), -1, 0)


@register("fire")
class Fire(FactorisingEncoding):
    """FIRE: `score_h = f_h(row distance) + g_h(column distance)`, learned functions of distances in the image.

    A score depends on the shift alone as far as the query is at most `L` pixels from both ends of an axis.

    Attributes:
      row, column: see `Axis`.
    """

    head_axis = {"row.output.kernel": 1, "column.output.kernel": 1}
    not_decayed = tuple(f"{axis}.{name}" for axis in ("row", "column") for name in ("scale", "threshold"))

    def __init__(self, num_heads: int, grid: Grid, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.row, self.column = (Axis(num_heads, size, dtype, rngs) for size in grid)

    def rescale(self, rows: float, columns: float) -> None:
        for axis, scale in ((self.row, rows), (self.column, columns)):
            axis.scale[...] = axis.scale[...] / scale
            axis.threshold[...] = axis.threshold[...] * scale

    def axis_scores(self, height: int, width: int) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        return self.row(height), self.column(width)
