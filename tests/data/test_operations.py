"""Operations on pictures against Pillow and against loops over pixels."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from PIL import Image, ImageEnhance, ImageOps

from attn_cnn_jax.data import operations
from attn_cnn_jax.training.mesh import data_mesh

NAMES = [*operations.COLOURS, *operations.GEOMETRY]


def pictures(count=1, shape=(6, 9, 3)):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


@functools.cache
def applied():
    return jax.jit(operations.apply)


def result(name, image, amount):
    return np.asarray(applied()(image.astype(np.float32), jnp.int32(NAMES.index(name)), jnp.float32(amount)))


ENHANCE = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "colour": ImageEnhance.Color}


def test_colours_are_those_of_pillow():
    image = pictures()[0]
    of_pillow = Image.fromarray(image)
    for name, enhance in ENHANCE.items():
        for amount in (-1.0, -0.3, 0.0, 0.5, 1.0):
            expected = np.asarray(enhance(of_pillow).enhance(1 + 0.9 * amount), np.float32)
            # Pillow rounds luminance to whole numbers before it blends, and values down.
            np.testing.assert_allclose(result(name, image, amount), expected, atol=2.0)
    for amount, bits in ((0.0, 8), (-0.25, 7), (0.5, 6), (1.0, 4)):
        np.testing.assert_array_equal(result("posterise", image, amount), ImageOps.posterize(of_pillow, bits))
    for amount, threshold in ((0.0, 256), (0.25, 192), (-0.5, 128), (1.0, 0)):
        np.testing.assert_array_equal(result("solarise", image, amount), ImageOps.solarize(of_pillow, threshold))


def matrix(name, amount, height, width):
    """From the pixel of the result, counted from the centre, to that of the picture: (row, column)."""
    angle = math.radians(30) * amount
    return {
        "rotation": ([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], [0, 0]),
        "shear_rows": ([[1, 0.3 * amount], [0, 1]], [0, 0]),
        "shear_columns": ([[1, 0], [0.3 * amount, 1]], [0, 0]),
        "shift_rows": ([[1, 0], [0, 1]], [0.3 * height * amount, 0]),
        "shift_columns": ([[1, 0], [0, 1]], [0, 0.3 * width * amount]),
    }[name]


@pytest.mark.parametrize("amount", [-1.0, 0.4, 0.0])
@pytest.mark.parametrize("name", operations.GEOMETRY)
def test_geometry_is_a_loop_over_pixels_and_their_four_neighbours(name, amount):
    image = pictures()[0].astype(np.float64)
    height, width, _ = image.shape
    linear, shift = (np.array(each, np.float64) for each in matrix(name, amount, height, width))
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    expected = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            y, x = linear @ (np.array([row, column]) - middle) + shift + middle
            for i in (math.floor(y), math.floor(y) + 1):
                for j in (math.floor(x), math.floor(x) + 1):
                    if 0 <= i < height and 0 <= j < width:
                        expected[row, column] += (1 - abs(y - i)) * (1 - abs(x - j)) * image[i, j]
    np.testing.assert_allclose(result(name, image, amount), expected, atol=0.02)


def operated(images, seed=0, **options):
    run = jax.jit(functools.partial(operations.operate, **({"count": 2, "magnitude": 0.8} | options)))
    return run(jax.random.key(seed), images)


def test_pictures_get_operations_of_their_own_in_order():
    images = pictures(12)
    got = np.asarray(operated(images))
    assert got.dtype == np.uint8
    for place, image in enumerate(images):
        kind_key, amount_key = jax.random.split(jax.random.fold_in(jax.random.key(0), place))
        kinds = jax.random.randint(kind_key, (2,), 0, 10)
        x = image.astype(np.float32)
        for kind, amount in zip(kinds, jax.random.uniform(amount_key, (2,), jnp.float32, -0.8, 0.8), strict=True):
            x = result(NAMES[int(kind)], x, amount)
        assert np.abs(got[place].astype(float) - np.round(x)).max() <= 1  # a half may be rounded either way
    assert len({picture.tobytes() for picture in np.asarray(operated(np.repeat(images[:1], 12, axis=0)))}) > 8


def test_operations_are_the_same_on_several_devices_and_for_filled_up_batches():
    images = pictures(16, (4, 4, 1))
    spread = NamedSharding(data_mesh(jax.devices()[:8]), PartitionSpec("data"))
    one = operated(images)
    chex.assert_trees_all_equal(jax.device_get(operated(jax.device_put(images, spread))), jax.device_get(one))
    chex.assert_trees_all_equal(jax.device_get(operated(images[:10])), jax.device_get(one)[:10])
    assert (np.asarray(operated(images, seed=1)) != np.asarray(one)).any()
