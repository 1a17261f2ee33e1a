"""Runs on the user's own images: streamed from the disk they compute the same, and need no data afterwards."""

import contextlib
import json
import shutil

import chex
import jax
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import feed, loop
from attn_cnn_jax.training.feed import Feed
from attn_cnn_jax.training.mesh import data_mesh
from attn_cnn_jax.training.prepare import prepare
from tests.support.digits_run import records_of
from tests.support.own_pictures import random_picture, write_folder


@pytest.fixture
def config(tmp_path):
    """An epoch with a validation split, dropout and augmentation; no number divides another."""
    config, file = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4), tmp_path / "own.npz"
    images, labels = np.random.default_rng(0).integers(0, 256, (1797, 8, 8), np.uint8), np.arange(1797) % 10
    np.savez(file, images=images[355:], labels=labels[355:], test_images=images[:355], test_labels=labels[:355])
    config.dataset.update({"name": "npz", "path": str(file), "data_dir": str(tmp_path / "data"), "num_validation": 97})
    config.augment.update({"crop_padding": 1, "flip": True})
    config.train.update({"batch_size": 95, "num_epochs": 1, "log_every_steps": 3, "eval_batch_size": 40})
    return config


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Four batches in training, nine in evaluation: chunks that are not full at the end."""
    monkeypatch.setattr(feed, "CHUNK_BYTES", 4 * 96 * 64)


def test_auto_streams_what_does_not_fit_and_every_number_is_that_of_the_data_on_the_device(
    config, tmp_path, monkeypatch, capsys, one_device
):
    loop.run(config, tmp_path / "device")
    monkeypatch.setattr(sources, "machine_memory", lambda: 4 * 1797 * 64 - 1)
    loop.run(config, tmp_path / "stream")
    assert "the images take 0.0 GB, more than a quarter of the" in capsys.readouterr().out
    expected, found = (records_of(tmp_path / kind) for kind in ("device", "stream"))
    assert {record["split"] for record in expected} == {"train", "validation", "test"}
    for one, other in zip(expected, found, strict=True):
        assert (one.pop("step"), one.pop("split")) == (other.pop("step"), other.pop("split"))
        assert one == pytest.approx(other, rel=1e-5)  # with XLA as users have it bit for bit
    device, stream = (split(load_run(tmp_path / kind).model)[1] for kind in ("device", "stream"))
    chex.assert_trees_all_close(device, stream, rtol=1e-3, atol=1e-5)
    records = read_metrics(tmp_path / "stream/metrics.jsonl")
    assert all(0 <= record["input_wait"] <= 1 for record in records if record["split"] == "train")


def test_validation_images_are_not_trained_on(config, tmp_path):
    with contextlib.ExitStack() as stack:
        prepared = prepare(config, tmp_path / "run", stack)
        trained = {image.tobytes() for image in np.asarray(prepared.feed.at(0).images)}
    held_out = {image.tobytes() for image in prepared.splits["validation"].images[:]}
    assert (len(trained), len(held_out), len(trained & held_out)) == (1442 - 97, 97, 0)
    assert prepared.schedule.steps_per_epoch == (1442 - 97) // 95


def test_chunks_hold_the_batches_of_every_epoch_wherever_a_run_begins_and_are_read_ahead_once(data_dir, monkeypatch):
    train, config, per_epoch = sources.load("digits", data_dir).train, attention_config(), 1442 // 96
    config.train.update({"batch_size": 96, "num_epochs": 2})
    images = Feed(train, config, data_mesh(jax.devices()[:2]), streamed=True)
    read, begun = images._read, []
    monkeypatch.setattr(images, "_read", lambda steps: begun.append(steps.start) or read(steps))
    for step in (3, 4, 7, 8, per_epoch - 1, per_epoch + 2, 2 * per_epoch - 1, 0):
        chunk = images.at(step)
        epoch, position = divmod(step, per_epoch)
        expected = feed.order_on_host(0, epoch, 1442)[96 * position : 96 * (position + 1)]
        np.testing.assert_array_equal(chunk.images[step - int(chunk.first)], train.images[expected])
        np.testing.assert_array_equal(chunk.labels[step - int(chunk.first)], train.labels[expected])
        assert images.steps_left(step) == min(4 - position % 4, per_epoch - position)
        assert chunk.images.shape == (4, 96, 8, 8, 1)
    images.close()
    assert begun == [0, 4, 8, 12, 15, 19, 27, 0, 4]  # the last chunk of an epoch holds three batches


def test_predictions_name_the_classes_without_the_data_and_pictures_that_moved_are_the_same_run(
    tmp_path, capsys, one_device
):
    splits, data = ("train", "validation", "test"), tmp_path / "data"
    own = write_folder(tmp_path / "own", classes=("cat", "dog", "emu"), count=48, splits=splits, size=(10, 8))
    assert main(["prepare", "folder", f"--path={own}", "--image-size=4x8", f"--data-dir={data}"]) == 0
    assert "Read back 144 training and 144 test images" in capsys.readouterr().out
    config = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4, downsample=2)
    config.dataset.update({"name": "folder", "data_dir": str(data), "path": str(own)})
    config.train.update({"batch_size": 96, "num_epochs": 1, "logger": "none"})
    loop.run(config, tmp_path / "run")
    said = capsys.readouterr().out
    assert f"folder {own}: 144 train, 144 validation, 144 test images of 3 classes, 10x8x3, mean 0." in said
    assert json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]["class_names"] == ["cat", "dog", "emu"]
    assert {each["split"] for each in records_of(tmp_path / "run")} == {*splits}
    assert load_run(tmp_path / "run", step="best").step == 1

    config.dataset.path = str(shutil.move(own, tmp_path / "moved"))
    shutil.rmtree(data)
    random_picture(5, (30, 20)).save(tmp_path / "mine.png")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "mine.png"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in found["classes"]} == {"cat", "dog", "emu"}
    loop.run(config, tmp_path / "run")
