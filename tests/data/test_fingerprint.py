"""The fingerprint of data: equal for equal data, and what it says of other data."""

import numpy as np
import pytest

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.fingerprint import differences, fingerprint
from attn_cnn_jax.data.sources import Split
from tests.support import cifar_archives


@pytest.fixture(scope="module")
def data(data_dir):
    return sources.load("digits", data_dir)


def test_it_is_of_the_data_and_not_of_how_it_came_here(tmp_path):
    """Binary and python archives of the same pictures, decoded or cached, in another folder."""
    for kind in ("binary", "python"):
        folder = tmp_path / kind
        folder.mkdir()
        cifar_archives.prepare(folder, kind=kind)
        for _decoded_or_cached in range(2):
            assert fingerprint(sources.load("cifar10", folder)) == FIRST


def test_every_change_of_the_data_changes_it_and_is_named(data):
    train, test = data.train, data.test
    moved = train.images.copy()
    moved[7, 3, 3, 0] ^= 1
    changed = {
        "": data,
        "train has other pictures here": data._replace(train=train._replace(images=moved)),
        "train has other labels here": data._replace(train=train._replace(labels=np.roll(train.labels, 1))),
        "train has 1,442 pictures of 8x8x1 there, 1,441 pictures of 8x8x1 here": data._replace(
            train=Split(train.images[:-1], train.labels[:-1])
        ),
        "test has other pictures and labels here": data._replace(test=Split(test.images[::-1], test.labels[::-1])),
        "test has 355 pictures of 8x8x1 there, 355 pictures of 4x16x1 here": data._replace(
            test=Split(test.images.reshape(-1, 4, 16, 1), test.labels)
        ),
    }
    for words, other in changed.items():
        assert differences(fingerprint(data), fingerprint(other)) == words
    contiguous = data._replace(train=train._replace(images=np.asfortranarray(train.images)))
    assert fingerprint(contiguous) == fingerprint(data)


def test_the_pictures_set_aside_are_part_of_it(data):
    splits = [sources.split_validation(data.train, 10, seed)[1] for seed in (0, 1)]
    there, here = (fingerprint(data, split) for split in splits)
    assert differences(there, here) == "validation has other pictures and labels here"


FIRST = {
    "train": {
        "shape": [25, 32, 32, 3],
        "pictures": "95f419e4c06daf50ed8469f0bbbf6763",
        "labels": "1c3b6fb5c7e1bbc8e66d199bbc63d27b",
    },
    "test": {
        "shape": [7, 32, 32, 3],
        "pictures": "e02e27f72676c649c1cc4d922f75b89e",
        "labels": "b29962f9aa68d540698b34c8d68a015a",
    },
}
