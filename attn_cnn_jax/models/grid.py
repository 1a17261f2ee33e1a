"""Heads that start as a convolution: centres on a square grid of shifts, one sharpness, values of one's own.

In the spirit of ConViT (d'Ascoli et al., 2021): attention begins local, and training may let go of it.
"""

import math

import jax.numpy as jnp
import numpy as np

from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.shifts import grid_positions
from attn_cnn_jax.models.encodings.base import GeneralizedQuadratic
from attn_cnn_jax.models.low_rank import truncate


def start_on_grid(layer: SelfAttention, locality: float, kernel: np.ndarray | None = None) -> None:
    """Puts the heads of a quadratic layer on a `sqrt(N_h) x sqrt(N_h)` grid of shifts.

    Args:
      layer: changed in place; quadratic or generalised quadratic, `N_h` a square number.
      locality: `alpha` of every head, in one over squared pixels: larger is more local.
      kernel: `(sqrt(N_h), sqrt(N_h), D_in, D_out)`, the convolution to begin as; heads smaller than its channels
        begin as its best approximation. None leaves the value maps as they are.
    """
    size = math.isqrt(layer.num_heads)
    centre, spread = grid_positions((size, size), (1, 1), locality)
    position = layer.position
    if isinstance(position, GeneralizedQuadratic):
        spread = spread[:, None, None] * np.eye(2)
    position.centre[...] = jnp.asarray(centre, position.centre.dtype)
    position.spread[...] = jnp.asarray(spread, position.spread.dtype)
    if kernel is None:
        return
    maps = np.asarray(kernel, np.float64).reshape(-1, *np.shape(kernel)[-2:])
    if layer.value is not None:
        head_size = layer.value.out_features // layer.num_heads
        value, maps, _ = truncate(maps, head_size)
        layer.value.kernel[...] = jnp.asarray(np.concatenate(value, axis=1), layer.value.kernel.dtype)
    layer.output.kernel[...] = jnp.asarray(maps.reshape(-1, maps.shape[-1]), layer.output.kernel.dtype)
    layer.output.bias[...] = jnp.zeros_like(layer.output.bias[...])


def identity_kernel(num_heads: int, channels: int) -> np.ndarray:
    """A kernel `(K, K, D, D)`, `K^2 = N_h`, whose entry `h` passes on the `h`-th share of the channels.

    All entries together are the identity, which is what ConViT's value matrix is: every head moves its
    own channels by its own shift.
    """
    size = math.isqrt(num_heads)
    kernel = np.zeros((num_heads, channels, channels))
    for head, share in enumerate(np.array_split(np.arange(channels), num_heads)):
        kernel[head, share, share] = 1
    return kernel.reshape(size, size, channels, channels)
