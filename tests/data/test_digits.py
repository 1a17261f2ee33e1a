"""The embedded digits: their order, split and values, and the way through tfds."""

import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import SPECS

TRAIN_SHA256 = "0d9c5288f6e33780c379517635d2a09a9a36ba665165e1332d94557bc77dac86"
TEST_SHA256 = "3f53dde2e1e7e8a55378950dc46794171d8451ca9063e7992a75fb9672256dc1"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return sources.load("digits", tmp_path_factory.mktemp("digits"))


def test_every_fifth_picture_of_a_class_is_test_in_the_order_of_scikit_learn(digits):
    bundled = load_digits()
    seen, fifth = [0] * 10, []
    for index, label in enumerate(bundled.target):
        seen[label] += 1
        if seen[label] % 5 == 0:
            fifth.append(index)
    rest = np.setdiff1d(np.arange(1797), fifth)
    for split, chosen in ((digits.train, rest), (digits.test, fifth)):
        np.testing.assert_array_equal(split.labels, bundled.target[chosen])
        # Sixteenths come back exactly: the scaling to bytes loses nothing.
        np.testing.assert_array_equal(np.round(split.images[..., 0] * (16 / 255)), bundled.images[chosen])
        assert split.images.max() == 255
        assert split.images.dtype == np.uint8
        assert split.labels.dtype == np.int32


def test_checksums_are_those_of_the_first_release(digits):
    sums = [hashlib.sha256(split.images.tobytes() + split.labels.tobytes()).hexdigest() for split in digits[:2]]
    assert sums == [TRAIN_SHA256, TEST_SHA256]


def test_spec_tells_the_truth(digits):
    spec = SPECS["digits"]
    assert digits.spec == spec
    assert (len(digits.train.labels), len(digits.test.labels)) == (spec.train_examples, spec.test_examples)
    assert digits.train.images.shape[1:] == digits.test.images.shape[1:] == spec.image_shape
    assert digits.class_names == tuple("0123456789")
    np.testing.assert_allclose((digits.train.images / 255).mean((0, 1, 2)), spec.mean, atol=5e-5)
    np.testing.assert_allclose((digits.train.images / 255).std((0, 1, 2)), spec.std, atol=5e-5)


def test_the_test_split_has_34_to_36_pictures_a_class(digits):
    counts = np.bincount(digits.test.labels, minlength=10)
    assert (counts.min(), counts.max()) == (34, 36)
