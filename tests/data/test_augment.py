"""Augmentation against a NumPy loop, and the distribution of its draws."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attn_cnn_jax.data import augment

run = jax.jit(augment.augment, static_argnames=("crop_padding", "flip"))


def pictures(count, shape=(32, 32, 3)):
    # No pixel is black, so that padding can be told from picture.
    return np.random.default_rng(0).integers(1, 256, (count, *shape), np.uint8)


def augment_by_loop(images, offsets, flips, padding):
    out = np.zeros_like(images)
    _, height, width, _ = images.shape
    for b in range(len(images)):
        for i in range(height):
            for j in range(width):
                k = i + offsets[b, 0] - padding
                column = width - 1 - j if flips[b] else j
                m = column + offsets[b, 1] - padding
                if 0 <= k < height and 0 <= m < width:
                    out[b, i, j] = images[b, k, m]
    return out


@pytest.mark.parametrize(
    ("shape", "padding", "flip"),
    [
        ((32, 32, 3), 4, True),  # of CIFAR
        ((8, 8, 1), 1, False),  # of digits
        ((5, 9, 2), 0, True),
    ],
)
def test_every_pixel_is_that_of_the_loop(shape, padding, flip):
    key, images = jax.random.key(3), pictures(16, shape)
    got = run(key, images, crop_padding=padding, flip=flip)
    offsets, flips = map(np.asarray, augment.draw(key, 16, padding))
    assert got.dtype == jnp.uint8
    assert len({*flips}) == 2
    chex.assert_trees_all_equal(np.asarray(got), augment_by_loop(images, offsets, flips & flip, padding))


def test_offsets_are_uniform_over_0_to_8_and_half_are_flipped():
    offsets, flips = map(np.asarray, augment.draw(jax.random.key(0), 90_000, 4))
    for axis in (0, 1):
        counts = np.bincount(offsets[:, axis], minlength=9)
        assert len(counts) == 9
        # Chi square of 8 degrees of freedom: 26.1 is passed by chance once in a thousand.
        assert ((counts - 10_000) ** 2 / 10_000).sum() < 26.1
    joint = np.bincount(offsets[:, 0] * 9 + offsets[:, 1], minlength=81)
    assert ((joint - 90_000 / 81) ** 2 / (90_000 / 81)).sum() < 124.8  # 80 degrees of freedom
    assert abs(flips.mean() - 0.5) < 0.0055  # 3.3 standard deviations
    assert np.abs(np.corrcoef([offsets[:, 0], offsets[:, 1], flips]) - np.eye(3)).max() < 0.011


def test_the_same_pictures_on_1_2_and_8_devices_and_none_travels():
    key, images = jax.random.key(5), pictures(16)
    alone = np.asarray(run(key, images, crop_padding=4, flip=True))
    for count in (2, 8):
        sharding = NamedSharding(Mesh(np.array(jax.devices()[:count]), ("data",)), PartitionSpec("data"))
        spread = jax.device_put(images, sharding)
        compiled = run.lower(key, spread, crop_padding=4, flip=True).compile()
        assert "all-gather" not in compiled.as_text()
        assert "all-reduce" not in compiled.as_text()
        chex.assert_trees_all_equal(np.asarray(compiled(key, spread)), alone)


def test_normalise_is_the_formula_in_float64():
    images, mean, std = pictures(4), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    expected = (images / 255.0 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(augment.normalise(images, mean, std), expected, rtol=1e-5, atol=1e-6)
    half = augment.normalise(images, mean, std, jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), expected, rtol=2**-8, atol=1e-6)
