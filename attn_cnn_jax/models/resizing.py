"""A trained network for images of another size, without training: positions and patches.

Images of `s` times the size show the same scene on `s` times as many pixels a side. So heads look `s` times as far
(`Encoding.rescale`; for eq. 9 `Delta s` and `alpha / s^2`), and each pixel of attention reads a window of `s` times the
side, by the kernel resized with the image (FlexiViT, arXiv 2212.08013). Neighbouring windows then overlap.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.models.classifier import AttentionClassifier, window_side


def resized(model: AttentionClassifier, before: Sequence[int], after: Grid) -> AttentionClassifier:
    """A copy for images of `after` rows and columns instead of the shape `before`; at the same size the same network.

    Sizes are multiples of the network's `downsample`.
    """
    model = nnx.clone(model)
    rows, columns = (new / old for new, old in zip(after, before[:2], strict=True))
    for block in model.blocks:
        for encoding in filter(None, (block.attention.position, block.attention.content)):
            encoding.rescale(rows, columns)
    kernel, channels = model.embedding.kernel[...], before[2]
    window = max(1, round(math.sqrt(len(kernel) // channels * rows * columns)))
    model.embedding.kernel = nnx.Param(resized_kernel(kernel, channels, window))
    model.embedding.in_features = window**2 * channels
    return model


def resized_kernel(kernel: Float[Array, "f d"], channels: int, window: int) -> Float[Array, "g d"]:
    """The kernel of a patch embedding for patches of `window` pixels a side, `f` and `g` in the order `(dy, dx, c)`.

    The one whose product with a resized patch is nearest to the kernel's with the patch: for larger patches the same,
    `B^+T k` where a patch is resized by `B`.
    """
    size = window_side(kernel, channels)
    if size == window:
        return kernel
    axis = np.asarray(jax.image.resize(jnp.eye(size), (size, window), "cubic"), np.float64).T
    inverse = np.linalg.pinv(np.kron(axis, axis).T)
    result = np.einsum("gf,fcd->gcd", inverse, np.asarray(kernel, np.float64).reshape(size**2, channels, -1))
    return jnp.asarray(result.reshape(window**2 * channels, -1), kernel.dtype)
