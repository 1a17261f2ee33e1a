"""A whole small run in this process, on two fake devices, and what load_run makes of it."""

import re
import shutil

import jax
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import fingerprint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training.loop import run
from tests.support.digits_run import STEPS_PER_EPOCH, digits_config

LAST = 3 * STEPS_PER_EPOCH


@pytest.fixture
def config(data_dir):
    return digits_config(data_dir)


def test_metrics_have_every_record_once(digits_run):
    records = read_metrics(digits_run / "metrics.jsonl")
    assert [r["step"] for r in records if r["split"] == "train"] == [10, 20, 30, 40, LAST]
    assert [(r["step"], r["epoch"]) for r in records if r["split"] == "test"] == [
        (epoch * STEPS_PER_EPOCH, epoch) for epoch in (1, 2, 3)
    ]
    for record in records:
        more = {"learning_rate", "images_per_second"} if record["split"] == "train" else set()
        assert record.keys() == {"step", "epoch", "split", "loss", "accuracy"} | more
    losses = [r["loss"] for r in records if r["split"] == "train"]
    assert losses[-1] < losses[0]


def test_load_run_predicts_what_the_run_measured(digits_run, config):
    restored, data = load_run(digits_run), sources.load("digits", config.dataset.data_dir)
    assert (restored.step, restored.data) == (LAST, fingerprint(data))
    probabilities = restored.predict(data.test.images, batch_size=64)
    record = read_metrics(digits_run / "metrics.jsonl")[-1]
    assert (probabilities.argmax(axis=1) == data.test.labels).mean() == pytest.approx(record["accuracy"], abs=1e-6)
    loss = -np.log(probabilities[np.arange(len(data.test.labels)), data.test.labels]).mean()
    assert loss == pytest.approx(record["loss"], rel=1e-5)
    assert repr(restored) == (
        f"Run on digits after step {LAST}, seed 0\n"
        "  attention layers with 4 heads; encoding quadratic; 1,918 parameters, float32\n"
        "  images 8x8x1 uint8 -> 10 classes"
    )


def test_steps_are_kept_and_found_by_number(digits_run):
    steps = [2 * STEPS_PER_EPOCH, LAST]  # the last two
    assert load_run(digits_run, step=steps[0]).step == steps[0]
    with pytest.raises(UserError, match=f"has checkpoints of steps {steps[0]}, {steps[1]}"):
        load_run(digits_run, step=1)
    with pytest.raises(UserError, match=r"train with config\.dataset\.num_validation above 0"):
        load_run(digits_run, step="best")


def test_a_finished_run_is_not_trained_again_and_not_by_another_configuration(digits_run, config, capsys):
    before = (digits_run / "metrics.jsonl").read_text()
    records = run(config, digits_run)
    assert "already trained" in capsys.readouterr().out
    assert records["test"] == read_metrics(digits_run / "metrics.jsonl")[-1]
    config.optimizer.learning_rate = 0.2
    with pytest.raises(UserError, match=r"optimizer.learning_rate \(0.1 there, 0.2 here\)"):
        run(config, digits_run)
    assert (digits_run / "metrics.jsonl").read_text() == before


def test_a_run_is_given_more_epochs_on_another_number_of_devices(digits_run, config, tmp_path, capsys, one_device):
    workdir = shutil.copytree(digits_run, tmp_path / "run")
    config.train.num_epochs = 4
    run(config, workdir)
    assert "num_epochs raised from 3 to 4: learning rates are those of the longer run" in capsys.readouterr().out
    assert (load_run(workdir).step, read_config(workdir).train.num_epochs) == (4 * STEPS_PER_EPOCH, 4)
    config.train.num_epochs = 3
    with pytest.raises(UserError, match=r"train.num_epochs \(4 there, 3 here\)"):
        run(config, workdir)


def test_predictions_under_jit_and_of_images_of_another_kind(digits_run):
    restored = load_run(digits_run)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    logits = jax.jit(lambda images: restored.model(restored.normalised(images))[0])(images)
    np.testing.assert_allclose(jax.nn.softmax(logits), restored.predict(images), rtol=1e-5)
    for other in (images.astype(np.float32), images[0], images.repeat(3, axis=3)):
        for predict in (restored.predict, jax.jit(restored.normalised)):
            with pytest.raises(UserError, match=r"allowed is \(B, H, W, 1\) uint8"):
                predict(other)


def test_a_run_that_blows_up_names_step_rate_and_checkpoint(config, tmp_path):
    config.optimizer.update({"learning_rate": 1e5, "weight_decay": 1e5, "schedule": "constant"})
    with pytest.raises(UserError) as error:
        run(config, tmp_path)
    message = str(error.value)
    assert re.search(r" in step \d, at learning rate 1e\+05; no checkpoint yet", message), message
    assert len(message.splitlines()) == 2
    assert read_metrics(tmp_path / "metrics.jsonl") == []
