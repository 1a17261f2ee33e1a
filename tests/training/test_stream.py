"""Streamed from the disk, a run computes what it computes with the data set on the device."""

import contextlib
import os
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources, stored
from attn_cnn_jax.data.builders import recipe
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import feed, loop
from attn_cnn_jax.training.mesh import data_mesh

BATCH_SIZE, NUM_VALIDATION = 95, 97
STEPS_PER_EPOCH = (1442 - NUM_VALIDATION) // BATCH_SIZE


@pytest.fixture
def config(tmp_path):
    """Two epochs with a validation split, dropout and augmentation; no number divides another."""
    sources.prepare(recipe("digits"), tmp_path / "data")
    config = attention_config(image_shape=(8, 8, 1), hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4)
    config.dataset.update({"name": "digits", "data_dir": str(tmp_path / "data"), "num_validation": NUM_VALIDATION})
    config.augment.update({"crop_padding": 1, "flip": True})
    config.train.update({"batch_size": BATCH_SIZE, "num_epochs": 2, "log_every_steps": 1, "eval_batch_size": 40})
    config.train.logger = "none"
    return config


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Four batches in training, nine in evaluation: chunks that are not full at the end."""
    monkeypatch.setattr(feed, "CHUNK_BYTES", 4 * BATCH_SIZE * 64)


def run(config, workdir, monkeypatch, kind="stream", num_devices=1, **values):
    config = config.copy_and_resolve_references()
    config.dataset.update({"feed": kind} | values)
    monkeypatch.setattr(loop, "mesh_for", lambda batch_size: data_mesh(jax.devices()[:num_devices]))
    loop.run(config, workdir)
    return numbers(workdir), split(load_run(workdir).model)[1]


@pytest.fixture(scope="module")
def trained():
    """What whole runs on one device gave, by number of epochs."""
    return {}


@pytest.fixture
def reference(config, tmp_path, monkeypatch, trained):
    """`reference()`: numbers and parameters of the whole run on one device, trained once for the tests here."""

    def reference():
        epochs = config.train.num_epochs
        if epochs not in trained:
            trained[epochs] = run(config, tmp_path / "reference", monkeypatch)
        return trained[epochs]

    return reference


def numbers(workdir):
    times = ("images_per_second", "input_wait")
    return [
        {key: value for key, value in record.items() if key not in times}
        for record in read_metrics(workdir / "metrics.jsonl")
    ]


# Trains three times on one device, with XLA as users have it: under the options of the tests the same arithmetic is
# rounded in another way as soon as the program around it differs.
PROGRAM = """
import pathlib, sys
from attn_cnn_jax.runs.directory import from_json
from attn_cnn_jax.training import feed, loop

folder, feed.CHUNK_BYTES = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for kind, workers in (("stream", 0), ("device", 0)):
    config = from_json((folder / "config.json").read_text())
    config.dataset.update({"feed": kind})
    loop.run(config, folder / f"{kind}_{workers}")
    if kind == "stream":
        assert not list((folder / "data").rglob("arrays.npz"))  # nothing decoded the whole set
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
    expected, parameters = numbers(tmp_path / "device_0"), split(load_run(tmp_path / "device_0").model)[1]
    assert {record["split"] for record in expected} == {"train", "validation", "test"}
    for name in ("stream_0",):
        assert numbers(tmp_path / name) == expected
        chex.assert_trees_all_equal(split(load_run(tmp_path / name).model)[1], parameters)


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [5])
def test_several_devices_share_batches(config, tmp_path, monkeypatch, reference, num_devices):
    """Evaluation batches of 40, which three devices cannot share evenly."""
    config.train.num_epochs = 1
    several, _ = run(config, tmp_path / "several", monkeypatch, num_devices=num_devices)
    one, _ = reference()
    chex.assert_trees_all_close([leave_split(r) for r in several], [leave_split(r) for r in one], atol=2e-5)


def leave_split(record):
    return {key: value for key, value in record.items() if key != "split"}


@pytest.mark.parametrize("then", ["stream", "device"])
def test_a_run_that_was_stopped_within_a_chunk_goes_on_to_the_same_end(config, tmp_path, monkeypatch, reference, then):
    expected = reference()
    stop_after = STEPS_PER_EPOCH + 5  # the second step of a chunk
    done = {"steps": 0}

    def agree(count, stop_signal):
        if done["steps"] == stop_after:
            return 0, 15
        done["steps"] += 1
        return 1, 0

    with monkeypatch.context() as patch:
        patch.setattr(loop.hosts, "agree", agree)
        with pytest.raises(SystemExit) as stopped:
            run(config, tmp_path / "stopped", patch)
    assert stopped.value.code == 128 + 15
    found = run(config, tmp_path / "stopped", monkeypatch, then)
    if then == "stream":
        assert found[0] == expected[0]
        chex.assert_trees_all_equal(found[1], expected[1])
    else:
        chex.assert_trees_all_close(found[1], expected[1], atol=1e-4)


def test_pictures_that_are_damaged_while_it_trains_cost_no_checkpoint(config, tmp_path, monkeypatch, reference):
    expected = reference()
    path = next((tmp_path / "data").rglob("digits-train.array_record*"))
    whole, create = path.read_bytes(), loop.create_evaluate_streamed

    def damaging(*arguments):
        evaluate = create(*arguments)

        def damaged(state, images):
            os.truncate(path, len(whole) // 5)
            return evaluate(state, images)

        return damaged

    with monkeypatch.context() as patch:
        patch.setattr(loop, "create_evaluate_streamed", damaging)
        with pytest.raises(UserError, match=r"is damaged: .*\n.*\nthe same command then goes on"):
            run(config, tmp_path / "run", patch)
    path.write_bytes(whole)
    found = run(config, tmp_path / "run", monkeypatch)
    assert found[0] == expected[0]
    chex.assert_trees_all_equal(found[1], expected[1])


def test_what_a_process_reads_is_its_rows_of_every_batch(config):
    """Of two processes, each with half of the rows; those past the end of a batch repeat its last picture."""
    dataset = stored.load(recipe("digits"), config.dataset.data_dir)
    whole = sources.load("digits", config.dataset.data_dir).train
    rows = np.arange(96)
    order = feed.order_on_host(0, 1, 1442)
    step = 15 + 2  # the third of the second epoch
    for mine in np.split(rows, 2):
        images, labels = feed.Steps(dataset.train, 0, BATCH_SIZE, mine, range(step, step + 1))[0]
        expected = order[2 * BATCH_SIZE :][:BATCH_SIZE][np.minimum(mine, BATCH_SIZE - 1)]
        np.testing.assert_array_equal(images, whole.images[expected])
        np.testing.assert_array_equal(labels, whole.labels[expected])


def test_a_run_that_goes_on_within_a_chunk_begins_to_read_once(config, monkeypatch):
    dataset = stored.load(recipe("digits"), config.dataset.data_dir)
    read_ahead, begun = feed.read_ahead, []

    def counted(items, **options):
        begun.append(items.steps.start)
        return read_ahead(items, **options)

    monkeypatch.setattr(feed, "read_ahead", counted)
    streamed = feed.Streamed(dataset.train, config, data_mesh(jax.devices()[:1]))
    with contextlib.closing(streamed):
        streamed.start(3)  # the last step of the first chunk
        assert [int(streamed.at(step).first) for step in (3, 4, 7, 8)] == [0, 4, 4, 8]
        assert begun == [0]


def test_the_rows_of_a_process_are_those_of_its_devices():
    mesh = data_mesh(jax.devices()[:4])
    np.testing.assert_array_equal(feed.rows_of_process(12, mesh), np.arange(12))
    assert feed.padded(95, mesh) == 96


def test_auto_streams_what_does_not_fit_and_says_so(config, tmp_path, monkeypatch, capsys):
    config.train.num_epochs = 1
    monkeypatch.setattr(stored, "machine_memory", lambda: 4 * 1797 * 64 - 1)
    run(config, tmp_path / "run", monkeypatch, "auto")
    assert "the images take 0.0 GB, more than a quarter of the" in capsys.readouterr().out
    records = read_metrics(tmp_path / "run/metrics.jsonl")
    assert all(0 <= record["input_wait"] <= 1 for record in records if record["split"] == "train")
