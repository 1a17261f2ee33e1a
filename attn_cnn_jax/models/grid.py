"""What blocks start from, `config.model.init`: on a grid as a convolution, mimetic, as impulses.

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

IMPULSE = 5.0  # alpha of "impulse": 97% of the attention on one pixel, and a gradient left for centres


def start(layer: SelfAttention, dense: nnx.Linear, init: str, locality: float, rngs: nnx.Rngs) -> None:
    """Changes a new layer of attention, and the linear map after it, as `config.model.init` says.

    - "grid": heads on a `sqrt(N_h) x sqrt(N_h)` grid of shifts; "identity": and each passes on its share of channels.
    - "mimetic" (Trockman and Kolter, arXiv 2305.09828): value maps add up to `0.4 Z - 0.4 I`, in "mimetic_plus" to
      `0.4 Z + 0.4 I`, each head with its share of the singular values; query and key maps, where there are such, give
      `0.7 Z + 0.7 I` per head. `Z` is normal of variance `1/D`. `dense` begins as the identity.
    - "impulse" (arXiv 2505.19985): on the grid with nearly all attention on one pixel, and mimetic value maps.

    Args:
      layer: has centres, and a square number of heads, where heads are put on a grid.
      dense: from and to the layer's channels.
      init: one of these names.
      locality: `alpha` of "grid" and "identity", in one over square pixels: larger is more local.
      rngs: of what is random.
    """
    heads, channels = layer.num_heads, layer.output.out_features
    if init in ("grid", "identity", "impulse"):
        start_on_grid(layer, IMPULSE if init == "impulse" else locality)
    if init == "identity":
        set_values(layer, identity_values(heads, channels))
    if init not in ("mimetic", "mimetic_plus", "impulse"):
        return
    set_linear(dense, jnp.eye(channels))
    total = noisy(rngs, 0.4, 0.4 if init == "mimetic_plus" else -0.4, channels)
    size = channels if layer.value is None else layer.value.out_features // heads
    shares = np.array_split(np.arange(channels), heads)
    value, output = zip(*(factors(total, share, size) for share in shares), strict=True)
    if layer.value is not None:
        set_linear(layer.value, jnp.concatenate(value, axis=1))
        set_linear(layer.output, jnp.concatenate(output))
    else:
        set_linear(layer.output, jnp.concatenate([a @ b for a, b in zip(value, output, strict=True)]))
    for encoding in (layer.position, layer.content):
        if init != "impulse" and isinstance(encoding, QueryKey):
            size, everything = encoding.query.out_features // heads, np.arange(channels)
            pairs = [factors(noisy(rngs, 0.7, 0.7, channels), everything, size) for _ in range(heads)]
            set_linear(encoding.query, jnp.concatenate([query for query, _ in pairs], axis=1))
            set_linear(encoding.key, jnp.concatenate([key.T for _, key in pairs], axis=1))


def noisy(rngs: nnx.Rngs, noise: float, identity: float, channels: int) -> Float[Array, "d d"]:
    """`noise Z + identity I`, with `Z` normal of variance `1/D`."""
    random = jax.random.normal(rngs.params(), (channels, channels), jnp.float32) / math.sqrt(channels)
    return noise * random + identity * jnp.eye(channels, dtype=jnp.float32)


def factors(
    matrix: Float[Array, "d d"], ranks: np.ndarray, size: int
) -> tuple[Float[Array, "d c"], Float[Array, "c d"]]:
    """Two maps whose product is the part of a matrix in these singular values, the first `size` of them."""
    left, singular, right = jnp.linalg.svd(matrix)
    ranks = ranks[:size]
    scale, missing = jnp.sqrt(singular[ranks]), size - len(ranks)
    return (
        jnp.pad(left[:, ranks] * scale[None, :], ((0, 0), (0, missing))),
        jnp.pad(scale[:, None] * right[ranks], ((0, missing), (0, 0))),
    )


def start_on_grid(layer: SelfAttention, locality: float) -> None:
    """Puts the heads of a layer, a square number of them, on a grid of shifts, all with `alpha = locality`."""
    size = math.isqrt(layer.num_heads)
    assert isinstance(layer.position, CentredEncoding)
    layer.position.start_on_grid(kernel_shifts((size, size)).astype(np.float64), locality)


def set_values(layer: SelfAttention, values: Float[np.ndarray, "h d o"]) -> None:
    """Gives a layer merged value maps, without bias; heads smaller than their rank take the best approximation."""
    if layer.value is not None:
        value, values, _ = truncate(values, layer.value.out_features // layer.num_heads)
        set_linear(layer.value, np.concatenate(value, axis=1))
    set_linear(layer.output, values.reshape(-1, values.shape[-1]))


def set_linear(linear: nnx.Linear, kernel: Float[AnyArray, "d o"]) -> None:
    """Gives a linear map this kernel, and no bias."""
    linear.kernel[...] = jnp.asarray(kernel, linear.kernel.dtype)
    if linear.bias is not None:
        linear.bias[...] = jnp.zeros_like(linear.bias[...])


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
