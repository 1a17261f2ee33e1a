"""Convolutions as self-attention (Theorem 1): one head a kernel entry, borders padded, queries strided."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import kernels
from attn_cnn_jax.models.attention import SelfAttention
from attn_cnn_jax.models.encodings import Quadratic
from attn_cnn_jax.models.shifts import grid_positions

Padding = str | tuple[tuple[int, int], ...]


class ConvolutionalAttention(nnx.Module):
    """Self-attention that begins as a convolution: pads the picture, attends, keeps every `stride`-th query.

    Head `h` of a quadratic encoding (eq. 9) has its centre at the shift that kernel entry `h` reads (Lemma 1)
    and all of its attention there as `alpha -> infinity` (Lemma 2). The padded picture is what the softmax
    sees, so that borders are those of a zero-padded convolution.

    Attributes:
      attention: the layer that sees the padded picture: `(b, H, W, D_in) -> (b, H, W, D_out)`.
      kernel_size, stride, dilation: rows and columns; of a 1-D layer the rows are 1.
      padding: "SAME", "VALID", or zeros before and after each axis.
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
        dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        num_heads = math.prod(kernel_size)
        self.kernel_size, self.stride, self.dilation, self.padding = kernel_size, stride, dilation, padding
        self.exact = math.isinf(sharpness)
        position = Quadratic(num_heads, dtype=dtype, rngs=rngs)
        centre, spread = grid_positions(kernel_size, dilation, sharpness)
        position.centre[...] = jnp.asarray(centre, position.centre.dtype)
        position.spread[...] = jnp.asarray(spread, position.spread.dtype)
        self.attention = SelfAttention(
            position,
            content=False,
            num_heads=num_heads,
            hidden_size=in_features,
            head_size=min(in_features, out_features) if head_size is None else head_size,
            output_size=out_features,
            dropout_rate=0.0,
            kernel="auto",
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """`(b, H, W, D_in) -> (b, H / stride, W / stride, D_out)`; a 1-D layer takes `(b, L, D_in)` too.

        Heads are added up one at a time, so that no array holds all of them.
        """
        if x.ndim == 3:
            return self(x[:, None])[:, 0]
        attention = self.attention
        output = attention.output
        pads = self.pads(x.shape[1:3])
        x = jnp.pad(x.astype(output.dtype), ((0, 0), *pads, (0, 0)))
        rows, columns = self.queries(x.shape[1:3])
        heads = {"output": output.kernel[...].reshape(attention.num_heads, -1, output.out_features)}
        if attention.value is not None:
            value = attention.value.kernel[...]
            heads["value"] = value.reshape(value.shape[0], attention.num_heads, -1).transpose(1, 0, 2)
        if self.exact:
            heads["start"] = jnp.round(attention.position.centre[...]).astype(jnp.int32)
        else:
            scores = attention.position.axis_scores(*x.shape[1:3])
            heads["rows"] = kernels.softmax(scores[0][:, rows])
            heads["columns"] = kernels.softmax(scores[1][:, columns])

        def add_head(total, head):
            values = x if "value" not in head else x @ head["value"].astype(x.dtype)
            if self.exact:
                average = shifted(values, head["start"], rows, columns)
            else:
                average = kernels.factorised(head["rows"][None], head["columns"][None], values)[..., 0, :]
            return total + average @ head["output"].astype(x.dtype), None

        shape = (x.shape[0], rows.size, columns.size, output.out_features)
        bias = jnp.broadcast_to(output.bias[...].astype(x.dtype), shape)
        return jax.lax.scan(add_head, bias, heads)[0]

    def pads(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Zeros before and after the rows and the columns of a picture of this size, in pixels."""
        if self.padding == "VALID":
            return (0, 0), (0, 0)
        if self.padding == "SAME":
            return tuple(jax.lax.padtype_to_pads(size, self.window(), self.stride, "SAME"))
        return self.padding

    def window(self) -> tuple[int, int]:
        """Rows and columns from the first to the last pixel that the kernel reads."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True))

    def queries(self, padded_size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the padded picture whose output is kept; UserError where there are none."""
        queries = []
        for a, size in enumerate(padded_size):
            before = self.dilation[a] * ((self.kernel_size[a] - 1) // 2)
            after = self.window()[a] - 1 - before
            queries.append(np.arange(before, size - after, self.stride[a]))
            if not queries[a].size:
                raise UserError(
                    f"a padded picture of {padded_size[0]}x{padded_size[1]} pixels: a kernel that spans "
                    f"{self.window()[0]}x{self.window()[1]} needs a larger one, or more padding"
                )
        return tuple(queries)


def shifted(x: jax.Array, shift: jax.Array, rows: np.ndarray, columns: np.ndarray) -> jax.Array:
    """The pixels at one shift from every query: `(b, H, W, d) -> (b, i, j, d)`.

    Args:
      shift: `(2,)` integers.
      rows, columns: queries, `(i,)` and `(j,)`, evenly spaced.
    """
    for axis, queries in ((1, rows), (2, columns)):
        stride = int(queries[1] - queries[0]) if queries.size > 1 else 1
        length = int(queries[-1] - queries[0]) + 1
        x = jax.lax.dynamic_slice_in_dim(x, int(queries[0]) + shift[axis - 1], length, axis)
        x = jax.lax.slice_in_dim(x, 0, length, stride, axis)
    return x
