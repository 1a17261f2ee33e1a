"""What is random about the images of a training step: order, crop, flip, operations; and their normalisation.

Pure functions that run on the device. What happens to an image depends on the key and on its place in the batch
alone, so that the result is the same however the batch is spread over devices.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Int32, UInt8

from attn_cnn_jax.arrays import AnyArray, Grid, Images, Key

Image = Float[Array, "H W C"]
Amount = Float[AnyArray, ""]
Affine = Float[Array, "2 3"]
BORDERS = {"black": "constant", "mirrored": "reflect"}  # by `config.augment.border`, modes of `pad`


def epoch_order(seed: int, epoch: int | Int[Array, ""], num_images: int) -> Int[Array, " n"]:
    """The order in which an epoch visits the training set: a permutation of `num_images` indices."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0), epoch)
    return jax.random.permutation(key, num_images)


@functools.lru_cache(maxsize=2)  # the last batches of an epoch are read together with the first of the next
def order_on_host(seed: int, epoch: int, num_images: int) -> Int[np.ndarray, " n"]:
    """`epoch_order`, computed by the CPU where JAX has it: sorting takes memory of a device."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS names others alone
            stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        return np.asarray(epoch_order(seed, epoch, num_images))


def draw(key: Key, batch_size: int, choices: tuple[int, int]) -> tuple[Int32[Array, "b 2"], Bool[Array, " b"]]:
    """Row and column of each image's crop in the padded image, from 0 to below `choices`; if it is mirrored."""
    offsets_key, flips_key = jax.random.split(key)
    below = jnp.array([choices], jnp.int32)
    offsets = jax.random.randint(offsets_key, (batch_size, 2), 0, below, dtype=jnp.int32)
    return offsets, jax.random.bernoulli(flips_key, 0.5, (batch_size,))


def augment(
    key: Key, images: Images, *, crop_padding: int, crop_size: Grid | None = None, border: str = "black", flip: bool
) -> UInt8[AnyArray, "b h w C"]:
    """The images, values 0 .. 255, each cropped at random after padding, then half of them mirrored.

    The padding is `crop_padding` pixels on every side: black, or with the `border` "mirrored" the image turned over at
    its outermost pixels, again and again where it is smaller. A crop has the height and width `crop_size`, or those of
    the image. The same key and batch give the same images.
    """
    _, height, width, channels = images.shape
    size = crop_size or (height, width)
    choices = height + 2 * crop_padding - size[0] + 1, width + 2 * crop_padding - size[1] + 1
    offsets, flips = draw(key, images.shape[0], choices)
    borders = ((crop_padding, crop_padding), (crop_padding, crop_padding), (0, 0))

    def crop(image: UInt8[AnyArray, "H W C"], offset: Int32[AnyArray, "2"]) -> UInt8[Array, "h w C"]:
        padded = jnp.pad(image, borders, mode=BORDERS[border])
        return jax.lax.dynamic_slice(padded, (offset[0], offset[1], jnp.int32(0)), (*size, channels))

    if choices != (1, 1):
        images = jax.vmap(crop)(images, offsets)
    return jnp.where(flips[:, None, None, None], images[:, :, ::-1], images) if flip else images


# Operations as in RandAugment: x is the image, values 0 .. 255; a, from -1 to 1, says how strong and which way.
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue
FACTOR = 0.9  # the largest change of brightness, contrast and colour
ANGLE = math.radians(30)  # of the largest rotation
SHARE = 0.3  # of a side that the largest shift moves, and of a pixel per pixel that the largest shear does


def grey(x: Image) -> Float[Array, "H W 1"]:
    """The luminance of three channels, the mean of others."""
    weights = LUMINANCE if x.shape[-1] == 3 else (1 / x.shape[-1],) * x.shape[-1]
    return jnp.einsum("hwc,c->hw", x, jnp.asarray(weights, x.dtype), precision="highest")[..., None]


def blend(x: Image, other: Image, a: Amount) -> Image:
    """The image moved away from another one (a > 0) or towards it (a < 0)."""
    return other + (1 + FACTOR * a) * (x - other)


def posterise(x: Image, a: Amount) -> Image:
    """Drops up to four of the eight bits of each value."""
    step = 2 ** jnp.round(4 * jnp.abs(a))
    return jnp.floor(x / step) * step


COLOURS: dict[str, Callable[[Image, Amount], Image]] = {
    "brightness": lambda x, a: blend(x, jnp.zeros_like(x), a),
    "contrast": lambda x, a: blend(x, jnp.full_like(x, grey(x).mean()), a),
    "colour": lambda x, a: blend(x, jnp.broadcast_to(grey(x), x.shape), a),
    "posterise": posterise,
    "solarise": lambda x, a: jnp.where(x >= 256 * (1 - jnp.abs(a)), 255 - x, x),
}
# Affine maps from a pixel of the result to one of the image, see `warp`.
GEOMETRY: dict[str, Callable[[Amount], Affine]] = {
    "rotation": lambda a: jnp.array(
        [[jnp.cos(ANGLE * a), jnp.sin(ANGLE * a), 0.0], [-jnp.sin(ANGLE * a), jnp.cos(ANGLE * a), 0.0]]
    ),
    "shear_rows": lambda a: jnp.array([[1.0, SHARE * a, 0.0], [0.0, 1.0, 0.0]]),
    "shear_columns": lambda a: jnp.array([[1.0, 0.0, 0.0], [SHARE * a, 1.0, 0.0]]),
    "shift_rows": lambda a: jnp.array([[1.0, 0.0, SHARE * a], [0.0, 1.0, 0.0]]),
    "shift_columns": lambda a: jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, SHARE * a]]),
}


def warp(x: Image, affine: Affine) -> Image:
    """The image whose pixel p, counted from the centre, is that at `affine @ (p, 1)` of `x`; black beyond the border.

    The last column of `affine` is in heights and widths, the others in pixels; values are interpolated bilinearly.
    """
    height, width, _ = x.shape
    middle = jnp.array([(height - 1) / 2, (width - 1) / 2], jnp.float32)
    affine = affine.at[:, 2].multiply(jnp.array([height, width], affine.dtype))
    rows, columns = jnp.mgrid[:height, :width].astype(jnp.float32) - middle[:, None, None]
    at = jnp.einsum("ij,jhw->ihw", affine, jnp.stack([rows, columns, jnp.ones_like(rows)]), precision="highest")
    at = list(at + middle[:, None, None])
    sample = functools.partial(jax.scipy.ndimage.map_coordinates, coordinates=at, order=1, mode="constant", cval=0.0)
    return jax.vmap(sample, in_axes=-1, out_axes=-1)(x)


def apply(x: Image, kind: Array, a: Amount) -> Image:
    """The image after the operation number `kind` of COLOURS, then GEOMETRY; values stay within 0 .. 255."""
    # One switch for the values and one for the map: every image is warped once, whatever it gets.
    x = jax.lax.switch(jnp.minimum(kind, len(COLOURS)), [*COLOURS.values(), lambda x, a: x], x, a)
    maps = [lambda a: jnp.eye(2, 3, dtype=a.dtype), *GEOMETRY.values()]
    affine = jax.lax.switch(jnp.maximum(kind - len(COLOURS) + 1, 0), maps, a)
    return jnp.clip(warp(x, affine), 0, 255)


def operate(key: Key, images: Images, *, count: int, magnitude: float) -> Images:
    """The images, values 0 .. 255, each after `count` operations sampled for it, one after the other.

    All are equally probable, their strength is uniform; `magnitude` is that of the strongest, 0 (no change) to 1.
    """

    def operate_one(place, image):
        key_kind, key_amount = jax.random.split(jax.random.fold_in(key, place))
        kinds = jax.random.randint(key_kind, (count,), 0, len(COLOURS) + len(GEOMETRY), jnp.int32)
        amounts = jax.random.uniform(key_amount, (count,), jnp.float32, -magnitude, magnitude)
        x = image.astype(jnp.float32)
        for kind, amount in zip(kinds, amounts, strict=True):
            x = apply(x, kind, amount)
        return jnp.round(x).astype(jnp.uint8)

    return jax.vmap(operate_one)(jnp.arange(images.shape[0]), images)


def normalise(
    images: UInt8[AnyArray, "*batch H W C"],
    mean: Sequence[float],
    std: Sequence[float],
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "*batch H W C"]:
    """(images / 255 - mean) / std, of C numbers each, computed in float32 and rounded to `dtype`."""
    channels = (1,) * (images.ndim - 1) + (-1,)
    means, deviations = (jnp.asarray(each, jnp.float32).reshape(channels) for each in (mean, std))
    return jnp.asarray((images.astype(jnp.float32) / 255 - means) / deviations, dtype)
