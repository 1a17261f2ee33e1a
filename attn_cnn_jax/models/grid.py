"""Heads that start as a convolution: centres on a square grid of shifts, one sharpness, values of one's own.

In the spirit of ConViT (d'Ascoli et al., 2021): attention begins local, and training may let go of it.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.models.low_rank import truncate


def start_on_grid(layer: SelfAttention, locality: float, kernel: Float[AnyArray, "r t d o"] | None = None) -> None:
    """Puts the heads of a layer on a `sqrt(N_h) x sqrt(N_h)` grid of shifts.

    Args:
      layer: changed in place; its encoding has centres, and `N_h` is a square number.
      locality: `alpha` of every head, in one over square pixels: larger is more local.
      kernel: `r = t = sqrt(N_h)`, the convolution to begin as; heads smaller than its channels begin as its best
        approximation. None leaves the value maps as they are.
    """
    size = math.isqrt(layer.num_heads)
    assert isinstance(layer.position, CentredEncoding)
    layer.position.start_on_grid(kernel_shifts((size, size)).astype(np.float64), locality)
    if kernel is None:
        return
    maps = np.asarray(kernel, np.float64).reshape(-1, *np.shape(kernel)[-2:])
    if layer.value is not None:
        head_size = layer.value.out_features // layer.num_heads
        value, maps, _ = truncate(maps, head_size)
        layer.value.kernel[...] = jnp.asarray(np.concatenate(value, axis=1), layer.value.kernel.dtype)
    layer.output.kernel[...] = jnp.asarray(maps.reshape(-1, maps.shape[-1]), layer.output.kernel.dtype)
    assert layer.output.bias is not None
    layer.output.bias[...] = jnp.zeros_like(layer.output.bias[...])


def identity_kernel(num_heads: int, channels: int) -> Float[np.ndarray, "r t d o"]:
    """Returns a kernel with `r t = N_h` entries, of which entry `h` passes on the `h`-th share of the channels.

    All entries together are the identity, which is what ConViT's value matrix is: every head moves its
    own channels by its own shift.
    """
    size = math.isqrt(num_heads)
    kernel = np.zeros((num_heads, channels, channels))
    for head, share in enumerate(np.array_split(np.arange(channels), num_heads)):
        kernel[head, share, share] = 1
    return kernel.reshape(size, size, channels, channels)
