"""Random crop, flip and normalisation: pure functions that run on the device, inside the training step.

The crop and flip of a picture depend on the key and on its place in the batch alone, so that the result is the same
however the batch is spread over devices.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int32, UInt8

from attn_cnn_jax.arrays import AnyArray, Images, Key


def draw(key: Key, batch_size: int, crop_padding: int) -> tuple[Int32[Array, "b 2"], Bool[Array, " b"]]:
    """Returns row and column of each image's crop in the padded image, from 0, and whether it is mirrored."""
    offsets_key, flips_key = jax.random.split(key)
    offsets = jax.random.randint(offsets_key, (batch_size, 2), 0, 2 * crop_padding + 1, dtype=jnp.int32)
    return offsets, jax.random.bernoulli(flips_key, 0.5, (batch_size,))


def crop(images: Images, offsets: Int32[AnyArray, "b 2"], crop_padding: int) -> UInt8[Array, "b H W C"]:
    """Returns windows of the old size, cut at `offsets` out of pictures padded with zeros."""
    borders = ((crop_padding, crop_padding), (crop_padding, crop_padding), (0, 0))

    def crop_one(image: UInt8[AnyArray, "H W C"], offset: Int32[AnyArray, "2"]) -> UInt8[Array, "H W C"]:
        padded = jnp.pad(image, borders)
        return jax.lax.dynamic_slice(padded, (offset[0], offset[1], jnp.int32(0)), image.shape)

    return jax.vmap(crop_one)(images, offsets)


def augment(key: Key, images: Images, *, crop_padding: int, flip: bool) -> Images:
    """Returns the pictures, each cropped at random after zero padding, then half of them mirrored.

    Args:
      key: a JAX random key; the same key and batch give the same pictures.
      images: values 0 .. 255, not yet normalised: the padding is black.
      crop_padding: zero pixels added on every side, 0 for no crop; static under `jax.jit`.
      flip: whether to mirror; static under `jax.jit`.
    """
    offsets, flips = draw(key, images.shape[0], crop_padding)
    if crop_padding:
        images = crop(images, offsets, crop_padding)
    return jnp.where(flips[:, None, None, None], images[:, :, ::-1], images) if flip else images


def normalise(
    images: UInt8[AnyArray, "*batch H W C"],
    mean: Sequence[float],
    std: Sequence[float],
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "*batch H W C"]:
    """Returns (images / 255 - mean) / std, computed in float32 and rounded to `dtype`.

    Args:
      images: values 0 .. 255.
      mean: C numbers, for pictures scaled to [0, 1].
      std: C numbers, for the same.
      dtype: the result's type, for example bfloat16.
    """
    channels = (1,) * (images.ndim - 1) + (-1,)
    means, deviations = (jnp.asarray(each, jnp.float32).reshape(channels) for each in (mean, std))
    return jnp.asarray((images.astype(jnp.float32) / 255 - means) / deviations, dtype)
