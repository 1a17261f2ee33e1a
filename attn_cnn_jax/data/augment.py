"""Random crop, flip and normalisation: pure functions that run on the device, inside the training step.

Axes: `b` picture, `i j` row and column, `d` channel. A picture's crop and flip depend on the key and on its
place in the batch alone, so the result is the same however the batch is spread over devices.
"""

import jax
import jax.numpy as jnp


def draw(key, batch_size, crop_padding):
    """Draw where each picture is cropped and whether it is mirrored.

    Args:
      key: a JAX random key.
      batch_size: number of pictures b.
      crop_padding: zero pixels added on every side before cropping.

    Returns:
      offsets: int32 (b, 2), row and column of the crop's first pixel in the padded picture, each uniform in
        0 .. 2 * crop_padding (crop_padding itself is the unmoved picture).
      flips: bool (b,), true for half of the pictures on average.
    """
    offsets_key, flips_key = jax.random.split(key)
    offsets = jax.random.randint(offsets_key, (batch_size, 2), 0, 2 * crop_padding + 1, dtype=jnp.int32)
    return offsets, jax.random.bernoulli(flips_key, 0.5, (batch_size,))


def crop(images, offsets, crop_padding):
    """Pad with zeros and cut out a window of the old size: (b, i, j, d), int32 (b, 2) -> (b, i, j, d)."""
    borders = ((crop_padding, crop_padding), (crop_padding, crop_padding), (0, 0))

    def crop_one(image, offset):
        padded = jnp.pad(image, borders)
        return jax.lax.dynamic_slice(padded, (offset[0], offset[1], jnp.int32(0)), image.shape)

    return jax.vmap(crop_one)(images, offsets)


def mirror(images, flips):
    """Reverse the columns of the pictures chosen by `flips`: (b, i, j, d), bool (b,) -> (b, i, j, d)."""
    return jnp.where(flips[:, None, None, None], images[:, :, ::-1], images)


def augment(key, images, *, crop_padding, flip):
    """Crop every picture at random after zero padding, then mirror half of them.

    Args:
      key: a JAX random key; the same key and batch give the same pictures.
      images: uint8 (b, i, j, d), values 0 .. 255, not yet normalised: the padding is black.
      crop_padding: zero pixels added on every side, 0 for no crop; static under `jax.jit`.
      flip: whether to mirror; static under `jax.jit`.

    Returns:
      uint8 (b, i, j, d).
    """
    offsets, flips = draw(key, images.shape[0], crop_padding)
    if crop_padding:
        images = crop(images, offsets, crop_padding)
    return mirror(images, flips) if flip else images


def normalise(images, mean, std, dtype=jnp.float32):
    """Return (images / 255 - mean) / std, computed in float32 and given as `dtype`.

    Args:
      images: uint8 (..., d), values 0 .. 255.
      mean, std: d numbers each, for pictures scaled to [0, 1].
      dtype: the result's type, for example bfloat16.

    Returns:
      An array of `dtype` and of the shape of `images`.
    """
    channels = (1,) * (images.ndim - 1) + (-1,)
    mean = jnp.asarray(mean, jnp.float32).reshape(channels)
    std = jnp.asarray(std, jnp.float32).reshape(channels)
    return ((images.astype(jnp.float32) / 255 - mean) / std).astype(dtype)
