"""Sets of tensorflow-datasets: prepared ones are read, builders without TensorFlow work, the others are refused."""

import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import Source
from attn_cnn_jax.errors import UserError, command_line
from tests.support import cifar_archives

GRADIENT = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


@pytest.fixture
def known(monkeypatch):
    """Lets `tfds.builder` find one more set, as its own are: arrays as pictures, no TensorFlow in sight."""

    def add(name, features, examples, split="train", urls=()):
        class Local(tfds.core.GeneratorBasedBuilder, skip_registration=True):
            VERSION = tfds.core.Version("1.0.0")
            url_infos = dict.fromkeys(urls)

            def _info(self):
                return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

            def _split_generators(self, dl_manager):
                return {split: self._generate_examples()}

            def _generate_examples(self):
                yield from enumerate(examples())

        Local.name = name
        original = tfds.builder
        found = lambda asked, **options: Local(**options) if asked == name else original(asked, **options)  # noqa: E731
        monkeypatch.setattr(tfds, "builder", found)

    return add


FEATURES = {"picture": tfds.features.Image(shape=(4, 4, 3)), "kind": tfds.features.ClassLabel(names=["left", "right"])}


def flips():
    for n in range(10):
        yield {"picture": GRADIENT + n if n % 2 else GRADIENT[:, ::-1] + n, "kind": n % 2}


def test_a_set_of_arrays_is_prepared_without_tensorflow(known, tmp_path):
    known("flips", FEATURES, flips)
    data = sources.load(Source("tfds:flips"), tmp_path)
    assert data.spec.class_names == ("left", "right")
    assert (len(data.train.labels), len(data.test.labels)) == (8, 2)
    seen = set()
    for images, labels in (data.train, data.test):
        seen |= set(zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True))
    assert seen == {(n if n % 2 else 9 + n, n % 2) for n in range(10)}
    assert sources.load(Source("tfds:flips", image_size=(2, 6)), tmp_path).train.images.shape == (8, 2, 6, 3)


def test_what_lies_prepared_in_the_data_folder_is_read(tmp_path):
    """Images that have an `id` are ordered by it; of the user's CIFAR-10 by name, mean and deviation are its own."""
    cifar_archives.prepare(tmp_path)
    expected, found = (sources.load(Source(name), tmp_path) for name in ("cifar10", "tfds:cifar10"))
    for split in ("train", "test"):
        np.testing.assert_array_equal(found.splits[split].images, expected.splits[split].images)
        np.testing.assert_array_equal(found.splits[split].labels, expected.splits[split].labels)
    np.testing.assert_allclose(found.spec.mean, (expected.train.images / 255).mean((0, 1, 2)), atol=5.1e-5)


def refused(name, data_dir, *words):
    with pytest.raises(UserError) as caught:
        sources.load(Source(f"tfds:{name}"), data_dir)
    said = str(caught.value)
    assert len(said.splitlines()) <= 2
    assert all(word in said for word in (f"tfds:{name}", *words)), said


def calls_tensorflow():
    import tensorflow

    yield {"picture": tensorflow.zeros((4, 4, 3)), "kind": 0}


def breaks():
    raise AttributeError("of mine")
    yield


def unlabelled():
    yield from ({"picture": GRADIENT, "kind": kind} for kind in (0, 1, -1))


TEXTS = {"text": tfds.features.Text()}
TWO = FEATURES | {"more": FEATURES["kind"]}
DEEP = FEATURES | {"picture": tfds.features.Image(shape=(4, 4, 3), dtype=np.uint16)}
OTHERS = {
    "calls_tensorflow": (FEATURES, calls_tensorflow, ("needs TensorFlow", "--data-dir DIR", "copy DIR/calls")),
    "breaks": (FEATURES, breaks, ("AttributeError: of mine", "choose another set")),
    "unlabelled": (FEATURES, unlabelled, ("choose another set",)),
    "texts": (TEXTS, flips, ("no set of images of uint8 with one class each", "text (Text")),
    "two_labels": (TWO, flips, ("more (ClassLabel",)),
    "deep": (DEEP, flips, ("uint16", "uint8")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_sets_that_cannot_be_used_are_refused_with_the_way_out(known, tmp_path, name):
    features, examples, words = OTHERS[name]
    known(name, features, examples)
    refused(name, tmp_path, *words)


def test_sets_that_are_not_there_or_only_in_part(known, tmp_path):
    known("tests_only", FEATURES, flips, split="test")
    refused("tests_only", tmp_path, "has no split train in ", "only test")
    known("far", FEATURES, flips, urls=["http://127.0.0.1:9/a.zip"])
    refused("far", tmp_path, "cannot be downloaded (http://127.0.0.1:9/a.zip: ")
    refused("no_such_set", tmp_path, "DatasetNotFoundError", "choose another set")
    refused("../../etc", tmp_path, "choose another set")


def read_again(root):
    """Makes the arrays anew from the records that are there."""
    shutil.rmtree(root / "prepared", ignore_errors=True)
    return sources.load("cifar10", root)


def damaged(root):
    with pytest.raises(UserError) as caught:
        read_again(root)
    first, second = str(caught.value).splitlines()
    assert f"the records in {root}/cifar10/3.0.2 are damaged, " in first
    assert f"`{command_line('prepare', 'cifar10', '--replace', '--data-dir', root)}`" in second


def test_damaged_records_are_found(tmp_path):
    cifar_archives.prepare(tmp_path)
    folder = tmp_path / "cifar10" / "3.0.2"
    (train,), (test,) = (list(folder.glob(f"cifar10-{split}.array_record*")) for split in ("train", "test"))
    whole = train.read_bytes()
    first, last = len(whole) // 8, len(whole) // 4  # ArrayRecord fills up blocks with bytes of no meaning
    flipped = whole[:first] + bytes(byte ^ 0xFF for byte in whole[first:last]) + whole[last:]
    for data in (b"", whole[: len(whole) // 3], whole[:-1], flipped, test.read_bytes()):
        train.write_bytes(data)
        damaged(tmp_path)
    train.unlink()
    damaged(tmp_path)


def test_a_damaged_description_and_one_of_files_that_only_tensorflow_reads(tmp_path):
    cifar_archives.prepare(tmp_path)
    description = tmp_path / "cifar10" / "3.0.2" / "dataset_info.json"
    of_tensorflow = description.read_text().replace("array_record", "tfrecord")
    for text in ("", "{", "[]", '{"name": 3}', None, of_tensorflow):
        description.unlink() if text is None else description.write_text(text)
        with pytest.raises(UserError, match=r"(?s)cifar10.*(cannot be used|not complete|are tfrecord\non a mac)"):
            read_again(tmp_path)
    assert cifar_archives.prepare(tmp_path, replace=True)  # whatever is there
