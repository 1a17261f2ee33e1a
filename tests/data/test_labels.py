"""Labels as arrays from anywhere: what is unambiguous is taken, the rest refused; validation by class."""

import numpy as np
import pytest

from attn_cnn_jax.data.labels import class_numbers
from attn_cnn_jax.data.sets import SPECS, Split, lacking, shares, split_validation
from attn_cnn_jax.errors import UserError

LABELS = np.array([2, 0, 1, 2])
ROWS = np.eye(3, dtype=int)[LABELS]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LABELS.tolist(), ""),
        (LABELS.astype(np.uint8), ""),
        (LABELS[:, None], "a column (4, 1)"),
        (ROWS, "one-hot rows (4, 3)"),
        (ROWS.astype(bool), "one-hot"),
        (ROWS.astype(np.float32), "one-hot"),
        (LABELS * 1.0, "read as integers"),
    ],
)
def test_unambiguous_labels_are_taken_and_it_is_logged(given, said, caplog):
    np.testing.assert_array_equal(class_numbers(given, 4, 3), LABELS)
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LABELS[:1], "4 images and labels of shape (1,)"),
        (2, "of shape ()"),
        (LABELS[None], "of shape (1, 4)"),
        (LABELS + 1, "2 of 4 labels are no class, the first 3 at 0"),
        (LABELS - 1, "leave out images without a class"),
        (LABELS + 0.5, "labels have 2.5"),
        (LABELS * np.nan, "labels have nan"),
        (ROWS + ROWS[::-1], "not one-hot"),
        (ROWS * 0.9, "not one-hot"),
        (np.eye(5)[LABELS], "float64 of shape (4, 5)"),
        (["cat", "dog", "cat", "dog"], "labels are <U3"),
        ([[0], [1, 2], [0], [1]], "make no array"),
        (LABELS > 0, "labels are bool"),
    ],
)
def test_other_labels_are_refused(given, said):
    with pytest.raises(UserError) as error:
        class_numbers(given, 4, 3)
    assert said in str(error.value)
    assert "allowed are integers from 0 to 2, (4,)" in str(error.value)


def test_no_images_are_refused():
    with pytest.raises(UserError, match="there are no images"):
        class_numbers([], 0, 3)


def test_as_many_images_as_classes_are_one_hot_and_not_a_matrix_of_labels():
    np.testing.assert_array_equal(class_numbers(np.eye(3, dtype=int)[[1, 2, 0]], 3, 3), [1, 2, 0])


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([80, 40, 4], 20, [13, 6, 1]),
        ([50, 50], 10, [5, 5]),
        ([100, 2, 2], 4, [2, 1, 1]),  # each class has one before the largest has its share
        ([10, 1], 3, [3, 0]),  # the last image of a class is trained with
        ([9, 9, 9], 2, [1, 1, 0]),  # fewer than classes
        ([2, 2], 3, [2, 1]),
    ],
)
def test_validation_images_are_divided_among_classes(counts, total, expected):
    assert shares(np.array(counts), total).tolist() == expected


def test_every_seed_has_validation_images_of_every_class_and_others_say_which_lack():
    labels = np.random.default_rng(0).permutation([0] * 80 + [1] * 40 + [2] * 4).astype(np.int32)
    images, drawn = np.arange(124, dtype=np.uint8)[:, None, None, None], set()
    for seed in range(5):
        train, held = split_validation(Split(images, labels), 20, seed)
        assert np.bincount(held.labels).tolist() == [13, 6, 1]
        numbers = [np.asarray(part.images).ravel().tolist() for part in (train, held)]
        assert sorted([*numbers[0], *numbers[1]]) == list(range(124))
        np.testing.assert_array_equal(held.labels, labels[numbers[1]])
        drawn.add(tuple(numbers[1]))
    assert len(drawn) == 5
    spec = SPECS["digits"]
    assert lacking(Split(images, np.arange(10, dtype=np.int32)), spec) == ""
    assert "2 images, none of 8 of 10 classes: 0, 2, 4, 5, 6, and 3 more" in lacking(
        Split(images, np.array([1, 3], np.int32)), spec
    )
