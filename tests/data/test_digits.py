"""The embedded digits: their order, split and values, and the way through tfds."""

import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attn_cnn_jax.data import sources

TRAIN_SHA256 = "ed7f47114713d53545db61ffa8151e723ab99cd5cc309146bacd1f2db05e8d03"
TEST_SHA256 = "076c26146fac4b846a241fe7f9a2ccee4f7f89f9a188f11a43ef44301ce92cb7"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return sources.load("digits", tmp_path_factory.mktemp("digits"))


def test_every_fifth_picture_is_test_in_the_order_of_scikit_learn(digits):
    bundled = load_digits()
    fifth = np.arange(4, 1797, 5)
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
    spec = sources.SPECS["digits"]
    assert digits.spec == spec
    assert (len(digits.train.labels), len(digits.test.labels)) == (spec.train_examples, spec.test_examples)
    assert digits.train.images.shape[1:] == digits.test.images.shape[1:] == spec.image_shape
    assert digits.class_names == tuple("0123456789")
    np.testing.assert_allclose((digits.train.images / 255).mean((0, 1, 2)), spec.mean, atol=5e-5)
    np.testing.assert_allclose((digits.train.images / 255).std((0, 1, 2)), spec.std, atol=5e-5)


def test_the_test_split_has_21_to_52_pictures_a_class(digits):
    counts = np.bincount(digits.test.labels, minlength=10)
    assert (counts.min(), counts.max()) == (21, 52)
