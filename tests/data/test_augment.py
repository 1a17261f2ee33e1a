"""Augmentation against loops over pixels and against Pillow, and the distribution of its draws."""

import functools
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from PIL import Image, ImageEnhance, ImageOps

from attn_cnn_jax.data import augment
from attn_cnn_jax.training.mesh import data_mesh

run = jax.jit(augment.augment, static_argnames=("crop_padding", "crop_size", "border", "flip"))


def pictures(count, shape=(8, 8, 3)):
    # No pixel is black, so that padding can be told from picture.
    return np.random.default_rng(0).integers(1, 256, (count, *shape), np.uint8)


def augment_by_loop(images, offsets, flips, padding, size):
    out = np.zeros((len(images), *size, images.shape[3]), images.dtype)
    for b, i, j in np.ndindex(out.shape[:3]):
        k = i + offsets[b, 0] - padding
        m = (size[1] - 1 - j if flips[b] else j) + offsets[b, 1] - padding
        if 0 <= k < images.shape[1] and 0 <= m < images.shape[2]:
            out[b, i, j] = images[b, k, m]
    return out


def test_every_pixel_is_that_of_the_loop():
    cases = ((8, 8, 3), 4, None, True), ((5, 9, 1), 1, None, False), ((5, 9, 3), 1, (4, 7), True)
    for shape, padding, crop, flip in cases:
        key, images = jax.random.key(3), pictures(16, shape)
        got = run(key, images, crop_padding=padding, crop_size=crop, flip=flip)
        size = crop or shape[:2]
        choices = tuple(side + 2 * padding - of_crop + 1 for side, of_crop in zip(shape[:2], size, strict=True))
        offsets, flips = map(np.asarray, augment.draw(key, 16, choices))
        assert (offsets < choices).all()
        assert got.dtype == jnp.uint8
        assert len({*flips}) == 2
        chex.assert_trees_all_equal(np.asarray(got), augment_by_loop(images, offsets, flips & flip, padding, size))


def test_a_mirrored_border_is_that_of_numpy_where_it_is_wider_than_the_image_too():
    for shape, padding in (((8, 6, 3), 2), ((3, 2, 1), 7), ((1, 4, 1), 2)):
        key, images = jax.random.key(3), pictures(16, shape)
        got = run(key, images, crop_padding=padding, border="mirrored", flip=False)
        offsets, _ = augment.draw(key, 16, (2 * padding + 1, 2 * padding + 1))
        for image, (row, column), found in zip(images, np.asarray(offsets), got, strict=True):
            whole = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode="reflect")
            np.testing.assert_array_equal(found, whole[row : row + shape[0], column : column + shape[1]])


def test_offsets_are_uniform_over_0_to_8_and_half_are_flipped():
    offsets, flips = map(np.asarray, augment.draw(jax.random.key(0), 90_000, (9, 9)))
    cells = np.bincount((offsets[:, 0] * 9 + offsets[:, 1]) * 2 + flips, minlength=162)
    assert len(cells) == 162
    # Chi square of 161 degrees of freedom: 222 is passed by chance once in a thousand.
    assert ((cells - 90_000 / 162) ** 2 / (90_000 / 162)).sum() < 222


def test_normalise_is_the_formula_in_float64():
    images, mean, std = pictures(4), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    expected = (images / 255.0 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(augment.normalise(images, mean, std), expected, rtol=1e-5, atol=1e-6)
    half = augment.normalise(images, mean, std, jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), expected, rtol=2**-8, atol=1e-6)


NAMES = [*augment.COLOURS, *augment.GEOMETRY]
applied = jax.jit(augment.apply)


def result(name, image, amount):
    return np.asarray(applied(image.astype(np.float32), jnp.int32(NAMES.index(name)), jnp.float32(amount)))


ENHANCE = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "colour": ImageEnhance.Color}


def test_colours_are_those_of_pillow():
    image = pictures(1, (6, 9, 3))[0]
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


def test_geometry_is_a_loop_over_pixels_and_their_four_neighbours():
    image = pictures(1, (6, 9, 3))[0].astype(np.float64)
    middle = (np.array(image.shape[:2]) - 1) / 2
    for name, amount in itertools.product(augment.GEOMETRY, (-1.0, 0.4)):
        linear, shift = (np.array(each, np.float64) for each in matrix(name, amount, *image.shape[:2]))
        expected = np.zeros_like(image)
        for place in np.ndindex(image.shape[:2]):
            y, x = linear @ (np.array(place) - middle) + shift + middle
            for i in (math.floor(y), math.floor(y) + 1):
                for j in (math.floor(x), math.floor(x) + 1):
                    if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                        expected[place] += (1 - abs(y - i)) * (1 - abs(x - j)) * image[i, j]
        np.testing.assert_allclose(result(name, image, amount), expected, atol=0.02)


@pytest.mark.usefixtures("threefry")
def test_images_get_operations_of_their_own_in_order_and_none_travels_between_devices():
    images = pictures(16, (6, 9, 3))
    operated = jax.jit(functools.partial(augment.operate, count=2, magnitude=0.8))
    got = np.asarray(operated(jax.random.key(0), images))
    assert got.dtype == np.uint8
    for place, image in enumerate(images):
        kind_key, amount_key = jax.random.split(jax.random.fold_in(jax.random.key(0), place))
        kinds = jax.random.randint(kind_key, (2,), 0, 10)
        x = image.astype(np.float32)
        for kind, amount in zip(kinds, jax.random.uniform(amount_key, (2,), jnp.float32, -0.8, 0.8), strict=True):
            x = result(NAMES[int(kind)], x, amount)
        assert np.abs(got[place].astype(float) - np.round(x)).max() <= 1  # a half may be rounded either way
    same = np.asarray(operated(jax.random.key(1), np.repeat(images[:1], 16, axis=0)))
    assert len({picture.tobytes() for picture in same}) > 8
    spread = jax.device_put(images, NamedSharding(data_mesh(jax.devices()[:8]), PartitionSpec("data")))
    both = jax.jit(lambda key, x: augment.augment(key, operated(key, x), crop_padding=4, flip=True))
    compiled = both.lower(jax.random.key(0), spread).compile()
    assert "all-gather" not in compiled.as_text()
    assert "all-reduce" not in compiled.as_text()
    chex.assert_trees_all_equal(
        *map(np.asarray, (compiled(jax.random.key(0), spread), both(jax.random.key(0), images)))
    )
