"""The loop: what is due when, what a run says, signals, and that a killed process loses nothing."""

import os
import shutil
import signal
import subprocess
import sys
import types

import chex
import jax
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config, resnet_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.training import limits
from attn_cnn_jax.training.hosts import stop_requests
from attn_cnn_jax.training.loop import Plan, Window, run
from attn_cnn_jax.training.mesh import data_mesh, mesh_for
from attn_cnn_jax.training.step import MAX_STEPS_PER_DISPATCH, most_steps
from tests.support.digits_run import STEPS_PER_EPOCH, digits_config, records_of


def plan(*, num_epochs=4, log_every_steps=3):
    """By default 4 epochs of 7 steps."""
    config = attention_config()
    config.train.update({"num_epochs": num_epochs, "log_every_steps": log_every_steps, "batch_size": 10})
    return Plan(config, 7)


def test_what_is_due_every_few_epochs_is_due_after_the_last_too():
    five = plan(num_epochs=5)
    for every, epochs in ((1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (5, [5]), (9, [5])):
        assert [step / 7 for step in range(1, 36) if five.due(step, every)] == epochs


def test_a_dispatch_ends_with_a_record_and_with_an_epoch():
    """An epoch has an order of its own, which a dispatch computes once; what is recorded has to be there."""
    for every in (1, 3, 7, 10, 100):
        here, ends = plan(log_every_steps=every), [0]
        while ends[-1] < 28:
            ends.append(ends[-1] + here.ahead(ends[-1]))
        assert ends == [step for step in range(29) if step % every == 0 or step % 7 == 0]


def test_convolutions_on_cpus_do_one_step_a_dispatch():
    mesh = data_mesh(jax.devices()[:1])
    for looped in (attention_config(), resnet_config(layers="attention")):
        assert most_steps(looped, mesh) == MAX_STEPS_PER_DISPATCH
    assert most_steps(resnet_config(), mesh) == 1


def test_a_record_has_the_means_of_its_steps_and_the_speed_of_this_process():
    window = Window({"loss": [1.0], "accuracy": [0.0]})  # a step of a process before this one
    for _ in range(3):
        window.add({"loss": np.array([1.0, 2.0, 9.0]), "accuracy": np.array([0.0, 0.5, 9.0])}, 2, 0.25, 0.0)
    expected = {"loss": 10 / 7, "accuracy": 1.5 / 7, "images_per_second": 6 * 10 / 0.75}
    assert window.numbers(10) == pytest.approx(expected)


def test_a_network_needs_its_parameters_three_times(monkeypatch):
    parameters = 12_086_844  # of the paper's quadratic network
    monkeypatch.setattr(limits, "device_memory", lambda: 3 * 4 * parameters)
    limits.check_memory(attention_config().model)
    monkeypatch.setattr(limits, "device_memory", lambda: 3 * 4 * parameters - 1)
    with pytest.raises(UserError, match=f"has {parameters:,} parameters: training needs 0 GB"):
        limits.check_memory(attention_config().model)


def test_the_expected_time_is_that_of_the_flops(monkeypatch):
    """A program of one product takes as long as one product, for as many steps; from a day on there is advice."""
    mesh, x = data_mesh(jax.devices()[:1]), np.ones((512, 1024), np.float32)
    program = jax.jit(lambda x: x @ x.T).lower(x).compile()
    clock = iter(np.cumsum([0.0] + [1.0, 5.0] * 8))  # each product takes one second
    monkeypatch.setattr(limits, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(limits, "SLOWER", 1.0)
    for steps, text in ((400, "1:40"), (4 * 86_400, "1 day 0 h (use a GPU, or a smaller network such as ")):
        assert limits.expected_time(program, mesh, steps).startswith(f"; very roughly {text}")


def test_a_batch_runs_on_the_largest_number_of_devices_that_divides_it(monkeypatch, capsys):
    assert [mesh_for(size).size for size in (96, 100, 25, 7, 11, 1)] == [8, 5, 5, 7, 1, 1]
    assert "batch_size=100: runs on 5 of 8 devices, which share it evenly" in capsys.readouterr().out
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert mesh_for(96).size == 8
    with pytest.raises(UserError, match=r"batch_size=100: allowed is a multiple of 8, .*such as 96 or 104"):
        mesh_for(100)


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


def test_a_killed_process_goes_on_to_the_end_of_the_uninterrupted_run_bit_for_bit(digits_run, data_dir, tmp_path):
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
        run(digits_config(data_dir), killed)
    assert records_of(killed) == records_of(digits_run)
    assert read_positions(killed) == read_positions(digits_run)
    chex.assert_trees_all_equal(*(split(load_run(workdir).model)[1] for workdir in (killed, digits_run)))


def test_a_lost_configuration_is_that_of_the_checkpoints(digits_run, data_dir, tmp_path):
    workdir, config = shutil.copytree(digits_run, tmp_path / "run"), digits_config(data_dir)
    (workdir / "config.json").unlink()
    config.optimizer.learning_rate = 0.2
    with pytest.raises(UserError, match=r"optimizer.learning_rate \(0.1 there, 0.2 here\)"):
        run(config, workdir)
    assert not (workdir / "config.json").exists()
    run(digits_config(data_dir), workdir)
    assert directory.to_json(directory.read_config(workdir)) == (digits_run / "config.json").read_text()
