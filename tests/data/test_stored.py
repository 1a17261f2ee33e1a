"""Data sets that stay on the disk: the pictures, labels and fingerprint of the same set in memory."""

import os

import chex
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.cli.prepare import prepare
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources, stored
from attn_cnn_jax.data.builders import recipe
from attn_cnn_jax.data.fingerprint import fingerprint
from attn_cnn_jax.data.preparation import cache
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.page.images import from_dataset
from tests.support import cifar_archives


@pytest.fixture
def prepared(tmp_path):
    """A data folder with a small CIFAR-10, whose records lie in another order than their ids."""
    cifar_archives.prepare(tmp_path)
    return tmp_path


def load(data_dir, **options):
    return stored.load(recipe("cifar10"), data_dir, **options)


def test_pictures_labels_and_fingerprint_are_those_in_memory(prepared):
    there = load(prepared)
    assert not list(prepared.rglob("arrays.npz"))
    here = sources.load("cifar10", prepared)
    assert (np.diff(there.train.positions) < 0).any()
    for name in ("train", "test"):
        indices = np.random.default_rng(0).permutation(len(getattr(here, name).labels))
        np.testing.assert_array_equal(getattr(there, name).images(indices), getattr(here, name).images[indices])
        np.testing.assert_array_equal(getattr(there, name).labels, getattr(here, name).labels)
    assert (there.spec, there.class_names) == (here.spec, here.class_names)
    chosen = sources.for_validation(25, 7, seed=1)
    ours, theirs = (fingerprint(data, data.train.select(chosen)) for data in (there, here))
    assert ours == theirs
    assert ours["validation"] != ours["test"]


@pytest.mark.slow
def test_processes_of_their_own_read_the_same(prepared, monkeypatch):
    monkeypatch.setattr(stored, "WORTH_PROCESSES", 0)
    dataset = load(prepared)
    assert stored.hash_pictures(dataset.train, workers=2) == dataset.train.digest


def test_the_index_is_made_once_and_anew_for_other_files(prepared, monkeypatch):
    lines = []
    first = load(prepared, say=lines.append)
    again = load(prepared, say=lines.append)
    assert len(lines) == 1
    assert "Indexing the 32 pictures" in lines[0]
    assert first.train.digest == again.train.digest
    for path in prepared.rglob("*.array_record*"):
        os.utime(path, ns=(1, 1))
    load(prepared, say=lines.append)
    assert len(lines) == 2


def test_neither_of_both_caches_makes_the_other_invalid(prepared):
    load(prepared)
    sources.load("cifar10", prepared)
    folder = next(prepared.rglob("index.npz")).parent
    for name in (cache.FILE, cache.INDEX):
        assert cache.read(folder, cache.stamp(folder), name) is not None


def test_a_folder_that_cannot_be_written_is_indexed_every_time(prepared, monkeypatch):
    def refuse(*arguments):
        raise PermissionError("read-only")

    monkeypatch.setattr(stored.store, "locked", refuse)
    assert load(prepared).train.digest == load(prepared).train.digest
    assert not list(prepared.rglob("index.npz"))


@pytest.mark.parametrize("left", [0, 0.2])
def test_a_file_that_is_cut_before_it_is_indexed(prepared, left):
    cut(prepared, left)
    with pytest.raises(UserError, match=r"is damaged: .*\nPrepare it again: `.*prepare cifar10 --replace"):
        load(prepared)


@pytest.mark.parametrize("left", [0, 0.2])
def test_a_file_that_is_cut_after_it_was_indexed(prepared, left):
    dataset = load(prepared)
    cut(prepared, left)
    with pytest.raises(stored.Lost, match=r"is damaged: .*\nPrepare it again: `.*prepare cifar10 --replace"):
        dataset.train.images(np.arange(25))


def cut(data_dir, left):
    path = next(data_dir.rglob("cifar10-train.array_record*"))
    os.truncate(path, int(left * path.stat().st_size))


def test_the_size_of_all_pictures_is_known_before_any_is_decoded(data_dir):
    assert stored.decoded_bytes(recipe("digits"), data_dir) == (1442 + 355) * 8 * 8


def test_who_looks_at_pictures_of_a_large_set_decodes_only_those(quadratic_run, data_dir, tmp_path, monkeypatch):
    """Prepared, fingerprinted and shown from the disk: the same pictures as with all of the set in memory."""
    run = load_run(quadratic_run)
    expected = pictures.first_pictures(run, 5), from_dataset(pictures.load_dataset(run), 12, (8, 8))
    monkeypatch.setattr(stored, "machine_memory", lambda: 4 * 1797 * 64 - 1)
    lines = []
    prepare("digits", data_dir=tmp_path, say=lines.append)
    assert lines[-1] == "Read back 1,442 training and 355 test pictures"
    dataset = pictures.load_dataset(run, tmp_path)
    chex.assert_trees_all_equal(pictures.first_pictures(run, 5, tmp_path), expected[0])
    for found, before in zip(from_dataset(dataset, 12, (8, 8)), expected[1], strict=True):
        np.testing.assert_array_equal(found.pixels, before.pixels)
        assert found[1:] == before[1:]
    assert not list(tmp_path.rglob("arrays.npz"))


def test_looking_writes_no_index_into_a_folder_that_the_run_names(prepared, monkeypatch):
    config = attention_config()
    config.dataset.update({"name": "cifar10", "data_dir": str(prepared)})
    monkeypatch.setattr(stored, "machine_memory", lambda: 1)
    before = sorted(prepared.rglob("*"))
    assert len(pictures.dataset_of(config).test.labels) == 7
    assert sorted(prepared.rglob("*")) == before
    pictures.dataset_of(config, prepared)
    assert len(sorted(prepared.rglob("*"))) == len(before) + 1
