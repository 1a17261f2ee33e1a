"""From attention back to a convolution: the part of each head's attention on a KxK grid of shifts.

A convolution has one kernel for all queries; a softmax over an image's pixels differs from query to query,
because near the border it has fewer pixels to spread over. So the weights are read off the *interior* queries:
those whose KxK window is inside the image, or, where no window does, the query at the centre. What follows:

- attention outside the window is lost; what remains is not scaled up;
- once K covers the image as the centre sees it, the convolution is exact at the centre; from K = 2 size - 1 on, it is
  so everywhere for attention that is the same function of the shift at every query, as uniform attention is;
- at the border it reads zeros where softmax looks elsewhere: an error that no K removes. A sharp head whose
  centre lies outside attends to the nearest pixel inside, as a convolution does that repeats the edge;
- each query's own attention, truncated to the window, is exact everywhere for K >= 2 size - 1: it separates the loss
  outside the window from the loss at the border (`analysis/convolution.py`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn_cnn_jax import compiling
from attn_cnn_jax.arrays import Activations, AnyArray, Grid, SharedAttention
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.layer import SelfAttention

KernelWeights = Float[AnyArray, "h r t"]  # attention by shift: one weight per head and entry of a kernel


class Convolution(NamedTuple):
    """A convolution with zero ("SAME") padding that stands in for an attention layer, and what it leaves out.

    Attributes:
      kernel, bias: `(K, K, D_in, D_out)` and `(D_out,)`.
      weights: attention on every shift of the kernel, `(h, K, K)`.
      mass_outside: attention of interior queries outside the kernel, mean over them, `(h,)`.
    """

    kernel: Float[Array, "r t d o"]
    bias: Float[Array, " o"]
    weights: KernelWeights
    mass_outside: Float[Array, " h"]

    def __call__(self, x: Activations) -> Float[Array, "b H W o"]:
        """Returns the output of the convolution, in the type of `x`: `(b, H, W, D_in) -> (b, H, W, D_out)`."""
        layout = ("NHWC", "HWIO", "NHWC")
        kernel, bias = self.kernel.astype(x.dtype), self.bias.astype(x.dtype)
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
        return y + bias.reshape(1, 1, 1, -1)


def attention_to_conv(
    layer: SelfAttention, kernel_size: int, *, grid: Grid = (16, 16), attention: SharedAttention | None = None
) -> Convolution:
    """Returns the KxK convolution closest to an attention layer at interior queries (Lemma 1 read backwards).

    Args:
      layer: an attention layer.
      kernel_size: K; an even size has its extra shift on the positive side.
      grid: rows and columns of pixels that the layer attends over; 16x16 is the paper's.
      attention: to use instead of the layer's own, `(h, i, j, k, l)`, such as the mean of a content layer over images.

    Raises:
      UserError: for a layer that attends by content without `attention`, or a size below 1.
    """
    if attention is None:
        if layer.depends_on_content:
            raise UserError("this layer's attention depends on the image: give its mean over images, attention=")
        attention = position_attention(layer, grid)
    weights, bias = shift_weights(attention, kernel_size), layer.output.bias
    assert bias is not None  # only value maps have none
    return Convolution(
        kernel=jnp.einsum("hrt,hdo->rtdo", weights, layer.merged_maps().astype(weights.dtype), precision="highest"),
        bias=bias[...],
        weights=weights,
        mass_outside=mass_outside(attention, kernel_size),
    )


def position_attention(layer: SelfAttention, grid: Grid) -> SharedAttention:
    """Returns the attention of a position-only layer: `(h, i, j, k, l)`."""
    return layer.probabilities(jnp.zeros((1, *grid, 0), jnp.float32))


def on_shifts(attention: SharedAttention, kernel_size: int) -> KernelWeights:
    """Returns attention on every shift of a kernel, mean over interior queries: `(h, i, j, k, l) -> (h, K, K)`.

    A shift that leads out of the image from the centre is read off the query nearest to it for which it does not; a
    shift longer than the image gets zero.
    """
    queries, keys, inside = zip(*(lookup(kernel_size, size) for size in attention.shape[1:3]), strict=True)
    # One row of index arrays per kernel entry: (r, 1, i, 1) against (1, t, 1, j).
    places = [(rows[:, None, :, None], columns[None, :, None, :]) for rows, columns in (queries, keys)]
    picked = attention[:, *places[0], *places[1]]
    return picked.mean(axis=(-2, -1)) * np.outer(*inside).astype(attention.dtype)[None]


shift_weights = compiling.jit(on_shifts, static_argnames="kernel_size")  # in the precision of JAX


def interior(kernel_size: int, size: int) -> Int[np.ndarray, " n"]:
    """Returns the positions on an axis whose window is inside the image, or the centre if there is none."""
    shifts = kernel_axis(kernel_size)
    positions = np.arange(-shifts[0], size - shifts[-1])
    return positions if positions.size else np.array([(size - 1) // 2])


def kernel_axis(kernel_size: int) -> Int[np.ndarray, " r"]:
    """Returns the shifts that a kernel reads along one axis, `(K,)`."""
    if kernel_size < 1:
        raise UserError(f"kernel_size={kernel_size}: allowed is an integer from 1")
    return np.arange(kernel_size) - (kernel_size - 1) // 2


def lookup(kernel_size: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns queries and keys `(K, n)` to read a kernel's weights from, and 0 where a shift exceeds the image."""
    shifts = kernel_axis(kernel_size)
    possible = np.clip(shifts, 1 - size, size - 1)
    lowest, highest = np.maximum(0, -possible), size - 1 - np.maximum(0, possible)
    queries = np.clip(interior(kernel_size, size)[None, :], lowest[:, None], highest[:, None])
    return queries, queries + possible[:, None], (shifts == possible).astype(np.float64)


def taps(kernel_size: int, size: int, padding: str) -> Bool[np.ndarray, "r i k"]:
    """Returns one where a shift leads from query `i` to key `k` along one axis: `(K, i, k)`.

    Beyond the border are "zeros", or the outermost pixel again, "edge".
    """
    keys = kernel_axis(kernel_size)[:, None] + np.arange(size)[None, :]
    if padding == "edge":
        keys = np.clip(keys, 0, size - 1)
    return keys[:, :, None] == np.arange(size)[None, None, :]


@compiling.jit(static_argnames="kernel_size")
def mass_outside(attention: SharedAttention, kernel_size: int) -> Float[Array, " h"]:
    """Returns attention outside the window, mean over interior queries: `(h, i, j, k, l) -> (h,)`."""
    sizes = attention.shape[1:3]
    rows, columns = (interior(kernel_size, size) for size in sizes)
    # A key lies in the window of a query where some entry of the kernel reads it.
    seen = [np.any(taps(kernel_size, size, "zeros"), axis=0) for size in sizes]
    window = seen[0][:, None, :, None] & seen[1][None, :, None, :]
    outside = jnp.where(window, 0, attention).sum(axis=(-2, -1))
    return outside[:, rows][:, :, columns].mean(axis=(-2, -1))


class OutputError(NamedTuple):
    """`|convolution - attention| / |attention|` in the Euclidean norm, both without their common bias.

    Attributes:
      everywhere: over all pixels, zeros beyond the border.
      interior: over interior pixels, whose windows are inside the image (else the centre): no border effects.
    """

    everywhere: float
    interior: float


def output_error(
    expected: Activations, actual: Activations, bias: Float[AnyArray, " d"], kernel_size: int
) -> OutputError:
    """Returns the relative error of a convolution's output `actual` against attention's `expected`, with one `bias`."""
    error, norm = (np.asarray(of_pixels, np.float64) for of_pixels in squares(expected, actual, bias))
    rows, columns = (interior(kernel_size, size) for size in expected.shape[1:3])
    inside = np.ix_(rows, columns)
    return OutputError(*(float(np.sqrt(e.sum() / n.sum())) for e, n in ((error, norm), (error[inside], norm[inside]))))


@compiling.jit
def squares(
    expected: Activations, actual: Activations, bias: Float[AnyArray, " d"]
) -> tuple[Float[Array, "H W"], Float[Array, "H W"]]:
    """Returns by pixel the sum of squares of `actual - expected`, and that of `expected` without its bias."""
    return jnp.square(actual - expected).sum((0, 3)), jnp.square(expected - bias.reshape(1, 1, 1, -1)).sum((0, 3))
