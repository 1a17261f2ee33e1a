"""What blocks begin with, `config.model.init`: on a grid as a convolution, mimetic, as impulses.

In the spirit of ConViT (d'Ascoli et al., 2021): attention begins local, and training may let go of it.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import CentredEncoding, QueryKey
from attn_cnn_jax.models.layers import normal

IMPULSE = 5.0  # alpha of "impulse": 97% of the attention on one pixel, and a gradient left for centres


def initialise(layer: SelfAttention, dense: nnx.Linear | None, init: str, locality: float, rngs: nnx.Rngs) -> None:
    """Changes a new layer of attention, and the linear map after it, as `config.model.init` says.

    - "grid": heads on a `sqrt(N_h) x sqrt(N_h)` grid of shifts; "identity": and each passes on its share of channels.
    - "mimetic" (Trockman and Kolter, arXiv 2305.09828): value maps add up to `0.4 Z - 0.4 I`, in "mimetic_plus" to
      `0.4 Z + 0.4 I`, each head with its share of the singular values; query and key maps, where there are such, give
      `0.7 Z + 0.7 I` per head. `Z` is normal of variance `1/D`. `dense`, where there is such, begins as the identity.
    - "impulse" (arXiv 2505.19985): on the grid with nearly all attention on one pixel, and mimetic value maps.

    The layer has centres, and a square number of heads, where heads are put on a grid. `locality` is the `alpha` of
    "grid" and "identity", in one over square pixels: larger is more local.
    """
    heads, channels = layer.num_heads, layer.output.out_features
    if init in ("grid", "identity", "impulse"):
        size = math.isqrt(heads)
        assert isinstance(layer.position, CentredEncoding)
        layer.position.start_on_grid(kernel_shifts((size, size)), IMPULSE if init == "impulse" else locality)
    # One where a channel, or a singular value, is in a head's share.
    shares = np.stack([np.isin(np.arange(channels), share) for share in np.array_split(np.arange(channels), heads)])
    if init == "identity":
        set_values(layer, shares[:, :, None] * np.eye(channels))
    if init in ("mimetic", "mimetic_plus", "impulse"):
        if dense is not None:
            set_linear(dense, jnp.eye(channels))
        total = noisy(rngs, 0.4, 0.4 if init == "mimetic_plus" else -0.4, channels)
        left, singular, right = jnp.linalg.svd(total)
        set_values(layer, jnp.einsum("dr,hr,ro->hdo", left, jnp.where(shares, singular[None], 0), right))
    for encoding in (layer.position, layer.content):
        if init in ("mimetic", "mimetic_plus") and isinstance(encoding, QueryKey):
            size = encoding.query.out_features // heads
            products = jnp.stack([noisy(rngs, 0.7, 0.7, channels) for _ in range(heads)])
            query, key, _ = truncate(products, size)
            wide = ((0, 0), (0, 0), (0, size - query.shape[2]))  # heads larger than the channels have zeros
            set_linear(encoding.query, jnp.concatenate(jnp.pad(query, wide), axis=1))
            set_linear(encoding.key, jnp.concatenate(jnp.pad(key.swapaxes(1, 2), wide), axis=1))


def noisy(rngs: nnx.Rngs, noise: float, identity: float, channels: int) -> Float[Array, "d d"]:
    """`noise Z + identity I`, with `Z` normal of variance `1/D`."""
    random = normal(rngs.params(), (channels, channels), jnp.float32) / math.sqrt(channels)
    return noise * random + identity * jnp.eye(channels, dtype=jnp.float32)


def set_values(layer: SelfAttention, values: Float[AnyArray, "h d o"]) -> None:
    """Gives a layer merged value maps, without bias; heads smaller than their rank take the best approximation."""
    if layer.value is not None:
        value, values, _ = truncate(values, layer.value.out_features // layer.num_heads)
        set_linear(layer.value, jnp.concatenate(value, axis=1))
    set_linear(layer.output, values.reshape(-1, values.shape[-1]))


def set_linear(linear: nnx.Linear, kernel: Float[AnyArray, "d o"]) -> None:
    """Gives a linear map, also one without arrays, this kernel, and no bias."""
    linear.kernel = nnx.Param(jnp.asarray(kernel, linear.kernel.dtype))
    if linear.bias is not None:
        linear.bias = nnx.Param(jnp.zeros(linear.bias.shape, linear.bias.dtype))


class LowRank(NamedTuple):
    """Value and output maps of heads smaller than the channels, `(h, d, c)` and `(h, c, o)`; what they cannot express.

    `discarded` are the singular values left out, `(h, min(D_in, D_out) - D_h)`: the first and largest is the error of
    `W_val W_out` in the spectral norm, the root of the sum of squares in Frobenius'.
    """

    value: AnyArray
    output: AnyArray
    discarded: AnyArray


def truncate(kernel: Float[AnyArray, "... d o"], head_dim: int) -> LowRank:
    """The best maps of rank `head_dim` for every slice of a kernel `(..., d, o)` (Eckart and Young).

    In float64 by NumPy, or in the kernel's type where that is an array of JAX.
    """
    numbers = jnp if isinstance(kernel, jax.Array) else np
    slices = kernel if isinstance(kernel, jax.Array) else np.asarray(kernel, np.float64)
    slices = slices.reshape(-1, *kernel.shape[-2:])
    left, singular, right = numbers.linalg.svd(slices, full_matrices=False)
    scale = numbers.sqrt(singular[:, :head_dim])
    return LowRank(
        left[:, :, :head_dim] * scale[:, None, :], scale[:, :, None] * right[:, :head_dim], singular[:, head_dim:]
    )
