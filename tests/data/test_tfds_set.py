"""Sets of tensorflow-datasets: prepared ones are read, builders without TensorFlow work, the others are refused."""

import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from attn_cnn_jax.cli.prepare import prepare
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import recipe, tfds_set
from attn_cnn_jax.data.builders.own import Own
from attn_cnn_jax.data.preparation import store
from attn_cnn_jax.errors import UserError, command_line

GRADIENT = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def builder(name, features, examples, split="train", urls=()):
    """Registers a set with tfds, as its own are: arrays as pictures, no TensorFlow in sight."""

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
    return Local


@pytest.fixture
def known(monkeypatch):
    """Makes `tfds.builder` find one more set: `known(builder class)`."""

    def add(cls):
        original = tfds.builder
        found = lambda name, **options: cls(**options) if name == cls.name else original(name, **options)  # noqa: E731
        monkeypatch.setattr(tfds, "builder", found)

    return add


FEATURES = {"picture": tfds.features.Image(shape=(4, 4, 3)), "kind": tfds.features.ClassLabel(names=["left", "right"])}


def flips():
    for n in range(10):
        yield {"picture": GRADIENT + n if n % 2 else GRADIENT[:, ::-1] + n, "kind": n % 2}


def test_a_set_of_arrays_is_prepared_without_tensorflow(known, tmp_path):
    known(builder("flips", FEATURES, flips))
    data = sources.load(Own("tfds:flips", ""), tmp_path)
    assert data.class_names == ("left", "right")
    assert (len(data.train.labels), len(data.test.labels)) == (8, 2)
    seen = set()
    for images, labels in (data.train, data.test):
        seen |= set(zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True))
    assert seen == {(n if n % 2 else 9 + n, n % 2) for n in range(10)}
    assert sources.load(Own("tfds:flips", "", image_size=(2, 6)), tmp_path).train.images.shape == (8, 2, 6, 3)


def test_what_lies_prepared_in_the_data_folder_is_read(data_dir, tmp_path):
    """tfds does not know the digits; their pictures have an `id`, by which they are ordered."""
    shutil.copytree(data_dir / "digits", tmp_path / "digits")
    expected, found = sources.load("digits", data_dir), sources.load(Own("tfds:digits", ""), tmp_path)
    np.testing.assert_array_equal(found.train.images, expected.train.images)
    np.testing.assert_array_equal(found.test.labels, expected.test.labels)
    assert (found.spec.mean, found.spec.std) == (expected.spec.mean, expected.spec.std)


def refused(name, data_dir, *words):
    with pytest.raises(UserError) as caught:
        sources.load(Own(f"tfds:{name}", ""), data_dir)
    said = str(caught.value)
    assert len(said.splitlines()) <= 2
    for word in (f"tfds:{name}", *words):
        assert word in said


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
    "calls_tensorflow": (
        FEATURES,
        calls_tensorflow,
        ("needs TensorFlow", "--data-dir DIR", "copy DIR/calls"),
    ),
    "breaks": (FEATURES, breaks, ("AttributeError: of mine", "choose another set")),
    "unlabelled": (FEATURES, unlabelled, ("choose another set",)),
    "texts": (TEXTS, flips, ("no set of pictures with one class each", "text (Text)")),
    "two_labels": (TWO, flips, ("more (ClassLabel)",)),
    "deep": (DEEP, flips, ("uint16", "uint8")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_sets_that_cannot_be_used_are_refused_with_the_way_out(known, tmp_path, name):
    features, examples, words = OTHERS[name]
    known(builder(name, features, examples))
    refused(name, tmp_path, *words)


def test_a_set_without_a_training_split(known, tmp_path):
    known(builder("tests_only", FEATURES, flips, split="test"))
    refused("tests_only", tmp_path, "has no split train, only test")


def test_a_set_that_cannot_be_downloaded(known, tmp_path, monkeypatch):
    known(builder("far", FEATURES, flips, urls=["http://far.example/a.zip"]))
    monkeypatch.setattr(tfds_set, "failure_of", lambda url: "ConnectTimeout")
    refused("far", tmp_path, "http://far.example/a.zip: ConnectTimeout", "network access")
    with pytest.raises(UserError, match="downloading is switched off"):
        sources.load(Own("tfds:far", ""), tmp_path, download=False)


def test_names_that_tfds_does_not_know(tmp_path):
    refused("no_such_set", tmp_path, "knows no such set", str(tmp_path))
    refused("../../etc", tmp_path, "allowed is tfds:NAME")


@pytest.fixture
def tfrecord(data_dir, tmp_path):
    """A folder of data sets with digits as TensorFlow's own tfds would prepare it."""
    folder = shutil.copytree(data_dir / "digits", tmp_path / "digits") / "1.0.0"
    for path in folder.iterdir():
        if "array_record" in path.name:
            path.rename(path.with_name(path.name.replace("array_record", "tfrecord")))
    (folder / "arrays.npz").unlink(missing_ok=True)
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    return tmp_path


def test_files_that_only_tensorflow_reads(tfrecord):
    refused("digits", tfrecord, "as tfrecord, which only TensorFlow reads", "machine with TensorFlow")


def test_a_built_in_set_that_only_tensorflow_reads_is_not_called_damaged(tfrecord):
    for use in (sources.load, store.prepare, prepare):
        with pytest.raises(UserError) as caught:
            use(recipe("digits"), data_dir=tfrecord)
        first, second = str(caught.value).splitlines()
        assert first == f"The data set digits lies in {tfrecord}/digits/1.0.0 as tfrecord, which only TensorFlow reads"
        command = command_line("prepare", "digits", "--data-dir", "DIR")
        assert second.startswith(f"Prepare another copy: `{command}`, and set config.dataset.data_dir=DIR")
        assert "--replace" not in second
    store.prepare(recipe("digits"), tfrecord, replace=True)  # where the user does want that
    assert len(sources.load("digits", tfrecord).test.labels) == 355
