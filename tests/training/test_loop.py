"""The loop: what is due when, a small run and what `load_run` makes of it, signals, and that a kill loses nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import fingerprint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.hosts import stop_requests
from attn_cnn_jax.training.loop import Window, run
from attn_cnn_jax.training.mesh import mesh_for
from attn_cnn_jax.training.prepare import Schedule
from tests.support.digits_run import STEPS_PER_EPOCH, digits_config, records_of
from tests.support.wrong_compiler import wrong_compiler

LAST = 3 * STEPS_PER_EPOCH


def test_what_is_due_every_few_epochs_is_due_after_the_last_too():
    config = attention_config()
    config.train.num_epochs = 5
    schedule = Schedule(config, 7)
    for every, epochs in ((1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (5, [5]), (9, [5])):
        assert [step / 7 for step in range(1, 36) if schedule.due(step, every)] == epochs


def test_a_record_has_the_means_of_its_steps_and_the_speed_of_this_process():
    window = Window({"loss": [1.0], "accuracy": [0.0]})  # a step of a process before this one
    for _ in range(3):
        window.add({"loss": np.array([1.0, 2.0, 9.0]), "accuracy": np.array([0.0, 0.5, 9.0])}, 2, 0.25, 0.0)
    expected = {"loss": 10 / 7, "accuracy": 1.5 / 7, "images_per_second": 6 * 10 / 0.75}
    assert window.numbers(10) == pytest.approx(expected)


def test_a_wrong_compiler_stops_training_before_its_first_step(monkeypatch, tmp_path, data_dir, self_check):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wrong_compiler(monkeypatch)
    with pytest.raises(UserError, match=r"self-check failed: the gradient of .* differ by .* on .*jaxlib"):
        run(digits_config(data_dir), tmp_path / "run")
    assert read_metrics(tmp_path / "run/metrics.jsonl") == []


def test_a_batch_runs_on_the_largest_number_of_devices_that_divides_it(capsys):
    assert [mesh_for(size).size for size in (96, 100, 25, 7, 11, 1)] == [8, 5, 5, 7, 1, 1]
    assert "batch_size=100: runs on 5 of 8 devices, which share it evenly" in capsys.readouterr().out


@pytest.fixture
def handler():
    """Sets what happens at Ctrl-C, for the test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda action: signal.signal(signal.SIGINT, action)
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_does_what_the_first_would_have_done(handler, capsys):
    handler(signal.default_int_handler)
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop == {"signal": signal.SIGINT}
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert capsys.readouterr().out == "stopping after this step; once more to stop at once without saving\n"
    handler(signal.SIG_IGN)  # as `nohup` does, and a script's `&`
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop == {"signal": 0}


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory, data_dir, self_check):
    """A finished run of three epochs, checked, on two of eight fake devices; tests that change it copy it first."""
    workdir = tmp_path_factory.mktemp("digits") / "run"
    run(digits_config(data_dir), workdir)
    return workdir


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
        more = {"learning_rate", "images_per_second"} if record["split"] == "train" else {"right", "count"}
        assert record.keys() == {"step", "epoch", "split", "loss", "accuracy"} | more
    losses = [r["loss"] for r in records if r["split"] == "train"]
    assert losses[-1] < losses[0]


def test_load_run_predicts_what_the_run_measured_also_under_jit(digits_run, config):
    restored, data = load_run(digits_run), sources.load("digits", config.dataset.data_dir)
    assert (restored.step, restored.data) == (LAST, fingerprint(data))
    probabilities = restored.predict(data.test.images, batch_size=64)
    record = read_metrics(digits_run / "metrics.jsonl")[-1]
    assert (probabilities.argmax(axis=1) == data.test.labels).mean() == pytest.approx(record["accuracy"], abs=1e-6)
    loss = -np.log(probabilities[np.arange(len(data.test.labels)), data.test.labels]).mean()
    assert loss == pytest.approx(record["loss"], rel=1e-5)
    logits = jax.jit(lambda images: restored.model(restored.normalised(images))[0])(data.test.images[:5])
    np.testing.assert_allclose(jax.nn.softmax(logits), probabilities[:5], rtol=1e-5)
    assert "  quadratic, 1 layers, 4 heads, hidden size 16; 1,918 parameters, float32\n" in repr(restored)
    assert load_run(digits_run, step=2 * STEPS_PER_EPOCH).step == 2 * STEPS_PER_EPOCH  # the last two are kept


def test_a_finished_run_is_of_one_configuration_and_is_given_more_epochs_on_other_devices(
    digits_run, config, tmp_path, capsys, one_device
):
    workdir, whole = shutil.copytree(digits_run, tmp_path / "run"), (digits_run / "metrics.jsonl").read_text()
    other = digits_config(config.dataset.data_dir)
    other.optimizer.learning_rate, other.model.encoding, other.train.num_epochs = 0.2, "learned", 2
    differ = r"encoding \('quad.* there, 'learned' here\), .*rate \(0.1 there, 0.2 here\), .*epochs \(3 there, 2 here\)"
    for lost in (False, True):  # without config.json, that of the checkpoints
        if lost:
            (workdir / "config.json").unlink()
        with pytest.raises(UserError, match=differ):
            run(other, workdir)
        assert (workdir / "config.json").exists() != lost
        assert run(config, workdir)["test"] == read_metrics(workdir / "metrics.jsonl")[-1]
        assert "already trained" in capsys.readouterr().out
    assert (workdir / "config.json").read_text() == (digits_run / "config.json").read_text()
    assert (workdir / "metrics.jsonl").read_text() == whole
    config.train.num_epochs, config.dataset.data_dir = 4, "/elsewhere"  # for longer, on another machine
    run(config, workdir)
    assert "num_epochs raised from 3 to 4: learning rates are those of the longer run" in capsys.readouterr().out
    assert load_run(workdir).step == 4 * STEPS_PER_EPOCH
    assert directory.read_config(workdir).train.num_epochs == 4


def test_a_run_that_blows_up_names_step_rate_and_checkpoint(config, tmp_path, one_device):
    config.optimizer.update({"learning_rate": 1e5, "weight_decay": 1e5, "schedule": "constant"})
    with pytest.raises(UserError) as error:
        run(config, tmp_path)
    message = str(error.value)
    assert re.search(r" in step \d, at learning rate 1e\+05; no checkpoint yet", message), message
    assert len(message.splitlines()) == 2
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_signals_are_noted_until_the_last_checkpoint_is_written(config, tmp_path, monkeypatch):
    """What saves is opened after they are, and so closed, which waits for Orbax, before they end the process again."""
    before, seen = signal.getsignal(signal.SIGTERM), []

    def recording(*_):
        seen.append(signal.getsignal(signal.SIGTERM))
        raise UserError("enough")

    monkeypatch.setattr(loop, "recording", recording)
    with pytest.raises(UserError, match="enough"):
        run(config, tmp_path / "run")
    assert seen != [before]
    assert signal.getsignal(signal.SIGTERM) == before


# Goes on with a run in a process of its own, which is killed when it is about to save its second epoch.
KILLED = """
import os, pathlib, signal, sys
from attn_cnn_jax.runs.directory import from_json
from attn_cnn_jax.training import loop

save = loop.ckpt.save

def die(checkpoints, step, *arguments):
    if step == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    save(checkpoints, step, *arguments)

loop.ckpt.save = die
loop.run(from_json(pathlib.Path(sys.argv[1]).read_text()), sys.argv[2])
"""


def test_a_killed_process_goes_on_to_the_end_of_the_uninterrupted_run_bit_for_bit(digits_run, config, tmp_path):
    program, killed = KILLED.format(step=2 * STEPS_PER_EPOCH), tmp_path / "killed"
    process = subprocess.run(
        [sys.executable, "-c", program, digits_run / "config.json", killed],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert records_of(killed)[-1]["step"] == 2 * STEPS_PER_EPOCH
    with jax.transfer_guard("disallow"):  # as JAX_TRANSFER_GUARD may: ended in a traceback
        run(config, killed)
    assert records_of(killed) == records_of(digits_run)
    assert read_positions(killed) == read_positions(digits_run)
    chex.assert_trees_all_equal(*(split(load_run(workdir).model)[1] for workdir in (killed, digits_run)))
