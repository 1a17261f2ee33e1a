"""Streamed from the disk, a run computes what it computes with the data set on the devices."""

import os
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources, store
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import feed, hosts, loop
from attn_cnn_jax.training.feed import NONE, Feed, evaluation_sets
from attn_cnn_jax.training.mesh import data_mesh
from tests.support.own_pictures import write_digits

BATCH_SIZE, NUM_VALIDATION = 95, 97
STEPS_PER_EPOCH = (1442 - NUM_VALIDATION) // BATCH_SIZE


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits as a prepared data set: arrays on the disk."""
    root = tmp_path_factory.mktemp("digits")
    return write_digits(root)[1]


@pytest.fixture
def config(tmp_path, digits):
    """Two epochs with a validation split, dropout and augmentation; no number divides another."""
    config = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4)
    config.dataset.update({"name": "npz", "path": str(digits), "data_dir": str(digits.parent / "data")})
    config.dataset.num_validation = NUM_VALIDATION
    config.augment.update({"crop_padding": 1, "flip": True})
    config.train.update({"batch_size": BATCH_SIZE, "num_epochs": 2, "log_every_steps": 1, "eval_batch_size": 40})
    return config


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Four batches in training, nine in evaluation: chunks that are not full at the end."""
    monkeypatch.setattr(feed, "CHUNK_BYTES", 4 * 96 * 64)


def run(config, workdir, monkeypatch, kind="stream"):
    config = config.copy_and_resolve_references()
    config.dataset.feed = kind
    monkeypatch.setattr(loop, "mesh_for", lambda batch_size: data_mesh(jax.devices()[:1]))
    loop.run(config, workdir)
    return numbers(workdir), split(load_run(workdir).model)[1]


def numbers(workdir):
    times = ("images_per_second", "input_wait")
    return [
        {key: value for key, value in record.items() if key not in times}
        for record in read_metrics(workdir / "metrics.jsonl")
    ]


# Trains twice on one device, with XLA as users have it: under the options of the tests the same arithmetic is rounded
# in another way as soon as the program around it differs.
PROGRAM = """
import pathlib, sys
from attn_cnn_jax.runs.directory import from_json
from attn_cnn_jax.training import feed, loop

folder, feed.CHUNK_BYTES = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for kind in ("stream", "device"):
    config = from_json((folder / "config.json").read_text())
    config.dataset.feed = kind
    loop.run(config, folder / kind)
"""


@pytest.mark.slow
def test_every_number_is_that_of_the_data_on_the_device_bit_for_bit(config, tmp_path):
    (tmp_path / "config.json").write_text(directory.to_json(config))
    as_users = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path, str(feed.CHUNK_BYTES)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | as_users,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    expected, found = (numbers(tmp_path / kind) for kind in ("device", "stream"))
    assert {record["split"] for record in expected} == {"train", "validation", "test"}
    assert found == expected
    chex.assert_trees_all_equal(*(split(load_run(tmp_path / kind).model)[1] for kind in ("device", "stream")))


def test_a_run_that_was_stopped_within_a_chunk_resumes_to_the_same_end(config, tmp_path, monkeypatch):
    expected = run(config, tmp_path / "reference", monkeypatch)
    stop_after = STEPS_PER_EPOCH + 5  # the second step of a chunk
    done = {"steps": 0}

    def agree(count, signal):
        if done["steps"] == stop_after:
            return 0, 15
        done["steps"] += 1
        return 1, 0

    with monkeypatch.context() as patch:
        patch.setattr(hosts, "agree", agree)
        with pytest.raises(SystemExit):
            run(config, tmp_path / "stopped", patch)
    found = run(config, tmp_path / "stopped", monkeypatch)
    assert found[0] == expected[0]
    chex.assert_trees_all_equal(found[1], expected[1])


@pytest.fixture
def streamed(config):
    """The training split and a feed that streams it to two devices."""
    train = sources.load("digits").train
    config.train.batch_size = 96
    return train, Feed(train, config, data_mesh(jax.devices()[:2]), streamed=True)


def test_chunks_hold_the_batches_of_every_epoch_in_order_wherever_a_run_begins(streamed):
    train, images = streamed
    per_epoch = 1442 // 96
    for step in (0, 1, 5, per_epoch - 1, per_epoch + 2, 2 * per_epoch - 1, 3):
        chunk = images.at(step)
        epoch, position = divmod(step, per_epoch)
        expected = feed.order_on_host(0, epoch, 1442)[96 * position : 96 * (position + 1)]
        np.testing.assert_array_equal(chunk.images[step - int(chunk.first)], train.images[expected])
        np.testing.assert_array_equal(chunk.labels[step - int(chunk.first)], train.labels[expected])
        assert 0 < images.steps_left(step) <= 4
        chex.assert_trees_all_equal_shapes_and_dtypes(chunk, images.like())
    images.close()


def test_a_chunk_is_read_while_the_one_before_is_used_and_none_twice(streamed, monkeypatch):
    _, images = streamed
    read, begun = images._read, []
    monkeypatch.setattr(images, "_read", lambda steps: begun.append(steps.start) or read(steps))
    found = [int(images.at(step).first) for step in (3, 4, 7, 8)]  # from the last step of the first chunk on
    images.close()
    assert found == [0, 4, 4, 8]
    assert begun == [0, 4, 8, 12]


def test_an_evaluation_sees_every_image_once():
    splits = {name: getattr(sources.load("digits"), name) for name in ("train", "test")}
    mesh = data_mesh(jax.devices()[:3])
    for streamed in (False, True):
        sets = evaluation_sets(splits, 50, mesh, streamed=streamed)
        for name, found in sets.items():
            for _ in range(2):  # again after each epoch
                chunks = list(found)
                labels = np.concatenate([np.ravel(chunk.labels) for chunk in chunks])
                images = np.concatenate([np.reshape(chunk.images, (-1, 8, 8, 1)) for chunk in chunks])
                np.testing.assert_array_equal(labels[labels != NONE], splits[name].labels)
                np.testing.assert_array_equal(images[labels != NONE], splits[name].images)
        assert len({chunk.images.shape for found in sets.values() for chunk in found}) == 1  # one program for all


def test_auto_streams_what_does_not_fit_and_says_so(config, tmp_path, monkeypatch, capsys):
    config.train.num_epochs = 1
    monkeypatch.setattr(store, "machine_memory", lambda: 4 * 1797 * 64 - 1)
    run(config, tmp_path / "run", monkeypatch, "auto")
    assert "the images take 0.0 GB, more than a quarter of the" in capsys.readouterr().out
    records = read_metrics(tmp_path / "run/metrics.jsonl")
    assert all(0 <= record["input_wait"] <= 1 for record in records if record["split"] == "train")
