"""Heads that start as a convolution: centres on a square grid of shifts, one sharpness, values of one's own.

In the spirit of ConViT (d'Ascoli et al., 2021): attention begins local, and training may let go of it.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import CentredEncoding


def start_on_grid(layer: SelfAttention, locality: float, values: Float[np.ndarray, "h d o"] | None = None) -> None:
    """Puts the heads of a layer on a `sqrt(N_h) x sqrt(N_h)` grid of shifts.

    Args:
      layer: changed in place; its encoding has centres, and `N_h` is a square number.
      locality: `alpha` of every head, in one over square pixels: larger is more local.
      values: merged value maps to begin with; heads smaller than their channels take the best approximation. None
        leaves the maps as they are.
    """
    size = math.isqrt(layer.num_heads)
    assert isinstance(layer.position, CentredEncoding)
    layer.position.start_on_grid(kernel_shifts((size, size)).astype(np.float64), locality)
    if values is None:
        return
    if layer.value is not None:
        value, values, _ = truncate(values, layer.value.out_features // layer.num_heads)
        layer.value.kernel[...] = jnp.asarray(np.concatenate(value, axis=1), layer.value.kernel.dtype)
    layer.output.kernel[...] = jnp.asarray(values.reshape(-1, values.shape[-1]), layer.output.kernel.dtype)
    assert layer.output.bias is not None
    layer.output.bias[...] = jnp.zeros_like(layer.output.bias[...])


def identity_values(num_heads: int, channels: int) -> Float[np.ndarray, "h d o"]:
    """Value maps with which head `h` passes on the `h`-th share of the channels; their sum is the identity."""
    values = np.zeros((num_heads, channels, channels))
    for head, share in enumerate(np.array_split(np.arange(channels), num_heads)):
        values[head, share, share] = 1
    return values


class LowRank(NamedTuple):
    """Value and output maps of heads smaller than the channels, `(h, d, c)` and `(h, c, o)`; what they cannot express.

    `discarded` are the singular values left out, `(h, min(D_in, D_out) - D_h)`: the first and largest is the error of
    `W_val W_out` in the spectral norm, the root of the sum of squares in Frobenius'.
    """

    value: np.ndarray
    output: np.ndarray
    discarded: np.ndarray


def truncate(kernel: Float[AnyArray, "... d o"], head_dim: int) -> LowRank:
    """The best maps of rank `head_dim` for every slice of a kernel `(..., d, o)` (Eckart and Young)."""
    slices = np.asarray(kernel, np.float64).reshape(-1, *np.shape(kernel)[-2:])
    left, singular, right = np.linalg.svd(slices, full_matrices=False)
    scale = np.sqrt(singular[:, :head_dim])
    value = left[:, :, :head_dim] * scale[:, None, :]
    output = scale[:, :, None] * right[:, :head_dim]
    return LowRank(value, output, singular[:, head_dim:])
