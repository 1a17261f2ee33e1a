"""Convolutions as self-attention (Theorem 1): one head per kernel entry or fewer; padded borders, strided queries."""

import functools
import math
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import accelerator, cpu
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.scores import softmax
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import Quadratic
from attn_cnn_jax.models.encodings.table import NONE, ShiftTable

Pads = tuple[tuple[int, int], tuple[int, int]]  # pixels before and after, rows first
Padding = str | Pads


class PaddedAttention(nnx.Module):
    """Self-attention with the borders of a convolution: pads the image, attends, keeps every `stride`-th query.

    The padded image is what the softmax sees, so that borders are those of a zero-padded convolution.

    Attributes:
      attention: the layer that sees the padded image: `(b, H, W, d) -> (b, H, W, o)`.
      kernel_size, stride, dilation: rows and columns; of a 1-D layer (`num_axes`), `(b, L, d)`, the rows are 1.
      padding: "SAME", "VALID", or zeros before and after each axis.
      largest: rows and columns of the largest padded image that `attention` is right for; None for any.
    """

    def __init__(
        self,
        attention: SelfAttention,
        kernel_size: tuple[int, int],
        *,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        padding: Padding = "SAME",
        num_axes: int = 2,
        largest: Grid | None = None,
    ):
        self.attention, self.largest = attention, largest
        self.kernel_size, self.stride, self.dilation, self.padding = kernel_size, stride, dilation, padding
        self.num_axes = num_axes

    def __call__(self, x: Float[Array, "*pixels d"]) -> Float[Array, "*queries o"]:
        """`(b, H, W, d) -> (b, H / stride, W / stride, o)`; also without `b`, as `nnx.Conv`, and 1-D `(b, L, d)`."""
        if x.ndim == self.num_axes + 1:
            return self(x[None])[0]
        if x.ndim == 3:
            return self(x[:, None])[:, 0]
        pads = self.pads((x.shape[1], x.shape[2]))
        x = jnp.pad(x.astype(self.attention.output.dtype), ((0, 0), *pads, (0, 0)))
        if self.largest and (x.shape[1] > self.largest[0] or x.shape[2] > self.largest[1]):
            allowed = "{}x{}".format(*self.largest)
            raise UserError(f"a padded image of {x.shape[1]}x{x.shape[2]} pixels: grid= allows up to {allowed}")
        return self.attended(x, *self.queries((x.shape[1], x.shape[2])))

    def attended(
        self, x: Float[Array, "b H W d"], rows: Int[np.ndarray, " i"], columns: Int[np.ndarray, " j"]
    ) -> Float[Array, "b i j o"]:
        """The layer's output at some queries of the padded image; here by attention from all of them."""
        return self.attention(x)[:, rows][:, :, columns]

    def pads(self, size: tuple[int, int]) -> Pads:
        """The zeros before and after the rows and the columns of an image of this size, in pixels."""
        return pads_for(self.padding, size, window_of(self.kernel_size, self.dilation), self.stride)

    def queries(self, padded_size: tuple[int, int]) -> tuple[Int[np.ndarray, " i"], Int[np.ndarray, " j"]]:
        """Rows and columns of the padded image whose output is kept; UserError where there are none."""
        window = window_of(self.kernel_size, self.dilation)
        if any(size < least for size, least in zip(padded_size, window, strict=True)):
            raise UserError(
                f"a padded image of {padded_size[0]}x{padded_size[1]} pixels: a kernel that spans "
                f"{window[0]}x{window[1]} needs a larger one, or more padding"
            )
        before = [d * ((k - 1) // 2) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        rows, columns = (
            np.arange(before[a], padded_size[a] - (window[a] - 1 - before[a]), self.stride[a]) for a in range(2)
        )
        return rows, columns


class ConvolutionalAttention(PaddedAttention):
    """Attention that begins as a convolution with one head per kernel entry (Theorem 1).

    Head `h` of a quadratic encoding (eq. 9) has its centre at the shift that kernel entry `h` reads (Lemma 1) and all
    of its attention there as `alpha -> infinity` (Lemma 2).

    Attributes:
      exact: whether alpha is infinite: a head then copies one pixel, the one nearest to its centre.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: tuple[int, int],
        *,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        padding: Padding = "SAME",
        head_size: int | None = None,
        sharpness: float = math.inf,
        num_axes: int = 2,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        num_heads = math.prod(kernel_size)
        self.exact = math.isinf(sharpness)
        position = Quadratic(num_heads, dtype=dtype, rngs=rngs)
        position.start_on_grid(kernel_shifts(kernel_size, dilation), sharpness)
        attention = SelfAttention(
            position,
            num_heads=num_heads,
            hidden_size=in_features,
            head_size=min(in_features, out_features) if head_size is None else head_size,
            output_size=out_features,
            dtype=dtype,
            rngs=rngs,
        )
        borders = {"stride": stride, "dilation": dilation, "padding": padding, "num_axes": num_axes}
        super().__init__(attention, kernel_size, **borders)

    def attended(
        self, x: Float[Array, "b H W d"], rows: Int[np.ndarray, " i"], columns: Int[np.ndarray, " j"]
    ) -> Float[Array, "b i j o"]:
        attention = self.attention
        maps, position = attention.maps(), cast(Quadratic, attention.position)
        if self.exact:
            starts = jnp.round(position.centre[...]).astype(jnp.int32)
            result = cpu.sum_over_heads(lambda start, values: shifted(values, start, rows, columns), starts, x, maps)
        else:
            row, column = position.axis_scores(*x.shape[1:3])
            backend = cpu if attention.target == "cpu" else accelerator
            result = backend.factorised(softmax(row[:, rows]), softmax(column[:, columns]), x, maps)
        return result + attention.bias


class TableAttention(PaddedAttention):
    """Attention that is a convolution with few heads, each with a table of scores over shifts (`ShiftTable`).

    Where the scores outside the window are minus infinity, nothing else is read.
    """

    def attended(
        self, x: Float[Array, "b H W d"], rows: Int[np.ndarray, " i"], columns: Int[np.ndarray, " j"]
    ) -> Float[Array, "b i j o"]:
        attention, position = self.attention, cast(ShiftTable, self.attention.position)
        if position.outside > NONE:
            return super().attended(x, rows, columns)
        shifts = kernel_shifts(self.kernel_size, self.dilation)
        window = position.window()
        centre = (np.array(window.shape[1:]) - 1) // 2
        weights = window[:, *(shifts + centre).T].astype(x.dtype)

        def average(weights, values):
            read = (shifted(values, jnp.asarray(shift), rows, columns) for shift in shifts)
            return functools.reduce(jnp.add, (weight * pixels for weight, pixels in zip(weights, read, strict=True)))

        return cpu.sum_over_heads(average, weights, x, attention.maps()) + attention.bias


def window_of(kernel_size: tuple[int, int], dilation: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns from the first to the last pixel that a kernel reads."""
    rows, columns = (d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True))
    return rows, columns


def pads_for(padding: Padding, size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int]) -> Pads:
    """The zeros before and after the rows and the columns of an image of a size, for a window and a stride."""
    if not isinstance(padding, str):
        return padding
    rows, columns = jax.lax.padtype_to_pads(size, window, stride, padding)
    return rows, columns


def shifted(
    x: Shaped[Array, "H W ..."], shift: Int[Array, "2"], rows: Int[np.ndarray, " i"], columns: Int[np.ndarray, " j"]
) -> Shaped[Array, "i j ..."]:
    """The pixels at one shift from every query, whose rows and columns are evenly spaced."""
    for axis, queries in enumerate((rows, columns)):
        stride = int(queries[1] - queries[0]) if queries.size > 1 else 1
        length = int(queries[-1] - queries[0]) + 1
        x = jax.lax.dynamic_slice_in_dim(x, int(queries[0]) + shift[axis], length, axis)
        x = jax.lax.slice_in_dim(x, 0, length, stride, axis)
    return x
