"""Random operations on colours or geometry, several in a row: like RandAugment, but inside the training step.

Which operations a picture gets, and how strongly, depends on the key and on its place in the batch alone, so that the
result is the same however the batch is spread over devices.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import AnyArray, Images, Key

Picture = Float[Array, "H W C"]
Amount = Float[AnyArray, ""]
Affine = Float[Array, "2 3"]

SHARE = 0.3  # of a side that the largest shift moves, and of a pixel per pixel that the largest shear does
ANGLE = math.radians(30)  # of the largest rotation
FACTOR = 0.9  # the largest change of brightness, contrast and colour
BITS = 4  # of the 8 of a value that the coarsest posterisation drops
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue


def grey(x: Picture) -> Float[Array, "H W 1"]:
    """Returns the luminance of a picture of three channels, the mean of the channels of another."""
    weights = LUMINANCE if x.shape[-1] == 3 else (1 / x.shape[-1],) * x.shape[-1]
    return jnp.einsum("hwc,c->hw", x, jnp.asarray(weights, x.dtype), precision="highest")[..., None]


def blend(x: Picture, other: Float[Array, "..."], amount: Amount) -> Picture:
    """Returns the picture moved away from another one (amount > 0) or towards it (amount < 0)."""
    return other + (1 + FACTOR * amount) * (x - other)


def posterise(x: Picture, amount: Amount) -> Picture:
    """Returns the picture with up to four of the eight bits of each value dropped."""
    step = 2 ** jnp.round(BITS * jnp.abs(amount))
    return jnp.floor(x / step) * step


def solarise(x: Picture, amount: Amount) -> Picture:
    """Returns the picture with its brightest values inverted: those from `256 (1 - abs(amount))` on."""
    return jnp.where(x >= 256 * (1 - jnp.abs(amount)), 255 - x, x)


COLOURS: dict[str, Callable[[Picture, Amount], Picture]] = {
    "brightness": lambda x, amount: blend(x, jnp.zeros_like(x), amount),
    "contrast": lambda x, amount: blend(x, jnp.full_like(x, grey(x).mean()), amount),
    "colour": lambda x, amount: blend(x, jnp.broadcast_to(grey(x), x.shape), amount),
    "posterise": posterise,
    "solarise": solarise,
}


def rotation(amount: Amount) -> Affine:
    """Returns the map of a rotation about the centre by up to 30 degrees."""
    cos, sin = jnp.cos(ANGLE * amount), jnp.sin(ANGLE * amount)
    return jnp.array([[cos, sin, 0.0], [-sin, cos, 0.0]])


GEOMETRY: dict[str, Callable[[Amount], Affine]] = {
    "rotation": rotation,
    "shear_rows": lambda amount: jnp.array([[1.0, SHARE * amount, 0.0], [0.0, 1.0, 0.0]]),
    "shear_columns": lambda amount: jnp.array([[1.0, 0.0, 0.0], [SHARE * amount, 1.0, 0.0]]),
    "shift_rows": lambda amount: jnp.array([[1.0, 0.0, SHARE * amount], [0.0, 1.0, 0.0]]),
    "shift_columns": lambda amount: jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, SHARE * amount]]),
}


def warp(x: Picture, affine: Affine) -> Picture:
    """Returns a picture whose pixel p, counted from the centre, is that at `affine @ (p, 1)` of the old one.

    The last column of `affine` is in heights and widths, the others in pixels. Values lie between the four nearest
    pixels in proportion; beyond the border the picture is black.
    """
    height, width, _ = x.shape
    middle = jnp.array([(height - 1) / 2, (width - 1) / 2], jnp.float32)
    affine = affine.at[:, 2].multiply(jnp.array([height, width], affine.dtype))
    rows, columns = jnp.mgrid[:height, :width].astype(jnp.float32) - middle[:, None, None]
    at = jnp.einsum("ij,jhw->ihw", affine, jnp.stack([rows, columns, jnp.ones_like(rows)]), precision="highest")
    at = list(at + middle[:, None, None])
    sample = functools.partial(jax.scipy.ndimage.map_coordinates, coordinates=at, order=1, mode="constant", cval=0.0)
    return jax.vmap(sample, in_axes=-1, out_axes=-1)(x)


def apply(x: Picture, kind: Array, amount: Amount) -> Picture:
    """Returns a picture after the operation number `kind` of COLOURS, then GEOMETRY; values stay within 0 .. 255."""
    # One switch for the values and one for the map: every picture is warped once, whatever it gets.
    x = jax.lax.switch(jnp.minimum(kind, len(COLOURS)), [*COLOURS.values(), lambda x, amount: x], x, amount)
    maps = [lambda amount: jnp.eye(2, 3, dtype=amount.dtype), *GEOMETRY.values()]
    affine = jax.lax.switch(jnp.maximum(kind - len(COLOURS) + 1, 0), maps, amount)
    return jnp.clip(warp(x, affine), 0, 255)


def operate(key: Key, images: Images, *, count: int, magnitude: float) -> Images:
    """Returns the pictures, each after `count` operations drawn for it.

    All operations are equally probable; how strong one is, and in which direction, is uniform.

    Args:
      key: a JAX random key; the same key and batch give the same pictures.
      images: values 0 .. 255.
      count: of operations one after the other; static under `jax.jit`.
      magnitude: of the strongest, from 0 (nothing changes) to 1.
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
