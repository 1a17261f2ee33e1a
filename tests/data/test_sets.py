"""Splits, validation images, fingerprints: what a data set is, whichever way it came."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attn_cnn_jax.data import sets, sources
from attn_cnn_jax.data.sets import Split, differences, fingerprint


@pytest.fixture(scope="module")
def data():
    return sources.load("digits")


def test_every_fifth_digit_of_a_class_is_test_in_the_order_of_scikit_learn(data):
    bundled, spec = load_digits(), data.spec
    fifth = np.sort(np.concatenate([np.flatnonzero(bundled.target == digit)[4::5] for digit in range(10)]))
    for split, chosen in ((data.train, np.setdiff1d(np.arange(1797), fifth)), (data.test, fifth)):
        np.testing.assert_array_equal(split.labels, bundled.target[chosen])
        # Sixteenths come back exactly: the scaling to bytes loses nothing.
        np.testing.assert_array_equal(np.round(split.images[..., 0] * (16 / 255)), bundled.images[chosen])
        assert split.images.max() == 255
    assert (len(data.train.labels), len(data.test.labels)) == (spec.train_examples, spec.test_examples)
    np.testing.assert_allclose((data.train.images / 255).mean((0, 1, 2)), spec.mean, atol=5e-5)
    np.testing.assert_allclose((data.train.images / 255).std((0, 1, 2)), spec.std, atol=5e-5)


def test_as_many_drawn_digits_follow_the_scans(data):
    """Runs keep a fingerprint of their data: what is drawn must be the same on every machine, with every NumPy."""
    both, count = sources.load("digits_and_strokes"), len(data.train.labels)
    assert both.spec == sets.SPECS["digits_and_strokes"]
    assert len(both.train.labels) == 2 * count == both.spec.train_examples
    scans = both._replace(train=both.train.select(np.arange(2 * count) < count))
    assert differences(fingerprint(data), fingerprint(scans)) == ""
    drawn = both.train.images[count:]
    assert (drawn > 0).any(axis=0).sum() == 6 * 8  # within the box that scans fill
    assert abs(drawn.mean() - data.train.images.mean()) < 10  # and of as much ink
    assert np.bincount(both.train.labels[count:]).min() == 144
    assert fingerprint(both)["train"]["pictures"] == "50a1e3af9adc5481863253ba9bbd34c4"


def test_every_change_of_the_data_changes_the_fingerprint_and_is_named(data):
    train, test = data.train, data.test
    moved = train.images.copy()
    moved[7, 3, 3, 0] ^= 1
    changed = {
        "": data,
        "train has other images here": data._replace(train=Split(moved, train.labels)),
        "train has other labels here": data._replace(train=Split(train.images, np.roll(train.labels, 1))),
        "train has 1,442 images of 8x8x1 there, 1,441 images of 8x8x1 here": data._replace(
            train=train.select(np.arange(1442) < 1441)
        ),
        "test has other images and labels here": data._replace(test=Split(test.images[::-1], test.labels[::-1])),
        "test has 355 images of 8x8x1 there, 355 images of 4x16x1 here": data._replace(
            test=Split(test.images.reshape(-1, 4, 16, 1), test.labels)
        ),
    }
    for words, other in changed.items():
        assert differences(fingerprint(data), fingerprint(other)) == words
    hashes = {"pictures": "659a726516ff1699f7170d05e99616d6", "labels": "81dd9243dcd8b125f87eb3f14671b8a5"}
    assert fingerprint(data)["test"] == {"shape": [355, 8, 8, 1]} | hashes  # as in version 0.2
    there, here = (fingerprint(data, sets.split_validation(train, 10, seed)[1]) for seed in (0, 1))
    assert differences(there, here) == "validation has other images and labels here"


def split_of(count):
    return Split(np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1), np.arange(count, dtype=np.int32) % 3)


def test_the_validation_split_is_the_same_for_ever_and_nothing_is_copied():
    def numbers(split):
        return np.asarray(split.images)[:, 0, 0, 0].tolist()

    whole = split_of(30)
    train, validation = sets.split_validation(whole, 5, seed=0)
    assert numbers(validation) == [1, 3, 11, 13, 21]
    assert numbers(train) == [n for n in range(30) if n not in numbers(validation)]
    for part in (train, validation):
        assert part.images.array is whole.images
        np.testing.assert_array_equal(np.asarray(numbers(part)) % 3, part.labels)
        some = np.array([[3, 1], [0, 2]])
        np.testing.assert_array_equal(part.at(some).images[..., 0, 0, 0] % 3, part.labels[some])
    other, more = (numbers(sets.split_validation(whole, count, seed)[1]) for count, seed in ((5, 1), (10, 0)))
    assert other != numbers(validation)
    assert {*numbers(validation)} < {*more}
    assert len(sets.split_validation(whole, 0, 0)[1].labels) == 0
