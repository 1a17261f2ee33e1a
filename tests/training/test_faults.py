"""Real training processes, killed and stopped: the end is that of an uninterrupted run, bit for bit."""

import random
import signal
import socket
import time

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.training.metrics import read_metrics

LONG = ("--config.train.num_epochs=150", "--config.checkpoint.every_epochs=1")
KILLS = 10


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def comparable(workdir):
    """metrics.jsonl without what measures time."""
    return [
        {key: value for key, value in record.items() if key != "images_per_second"}
        for record in read_metrics(workdir / "metrics.jsonl")
    ]


def parameters(workdir):
    return split(load_run(workdir).model)[1]


def assert_same_run(workdir, reference):
    assert comparable(workdir) == comparable(reference)
    ours, theirs = parameters(workdir), parameters(reference)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a run that nobody stops; trained by the first test that asks for it."""
    return tmp_path_factory.mktemp("uninterrupted") / "run"


def reference_run(command, workdir):
    if not workdir.exists():
        finish(command(workdir, *LONG))
    return workdir


def wait_for_first_record(process):
    """Returns once the process trains."""
    for line in process.stdout:
        if ": train loss" in line:
            return
    raise AssertionError(f"ended with {process.wait()} before it trained")


def test_sigkill_at_random_moments_changes_nothing(command, uninterrupted, tmp_path):
    reference = reference_run(command, uninterrupted)
    moments = random.Random(0)
    kills = 0
    while kills < KILLS:
        process = command(tmp_path / "run", *LONG)
        try:
            wait_for_first_record(process)
        except AssertionError:  # it got to the end before it was killed
            break
        time.sleep(moments.uniform(0, 2))
        process.kill()
        process.communicate()
        kills += 1
        read_metrics(tmp_path / "run/metrics.jsonl")  # no half line breaks a reader
    assert kills == KILLS, "the run ended too early to be killed ten times"
    output = finish(command(tmp_path / "run", *LONG))
    assert "going on after step" in output
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(command, uninterrupted, tmp_path, number):
    reference = reference_run(command, uninterrupted)
    process = command(tmp_path / "run", *LONG)
    wait_for_first_record(process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "the same command goes on from there" in output
    assert "Traceback" not in output
    step = load_run(tmp_path / "run").step
    assert f"stopped after step {step} of" in output
    output = finish(command(tmp_path / "run", *LONG))
    assert f"going on after step {step}" in output
    assert_same_run(tmp_path / "run", reference)


def test_two_processes_train_as_one(command, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    short = ("--config.train.num_epochs=3",)
    finish(command(tmp_path / "one", *short))
    together = ("--multihost", f"--coordinator_address=127.0.0.1:{port}", "--num_processes=2")
    processes = [command(tmp_path / "two", *short, *together, f"--process_id={n}") for n in range(2)]
    outputs = [finish(process) for process in processes]
    assert "final test accuracy" in outputs[0]
    assert "epoch" not in outputs[1]  # one process speaks
    one, two = comparable(tmp_path / "one"), comparable(tmp_path / "two")
    assert [record["step"] for record in one] == [record["step"] for record in two]
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    for name, array in parameters(tmp_path / "one").items():
        np.testing.assert_allclose(parameters(tmp_path / "two")[name], array, atol=1e-4)


def test_a_second_process_on_the_same_run_is_refused(command, tmp_path):
    first = command(tmp_path / "run", *LONG)
    wait_for_first_record(first)
    second = command(tmp_path / "run", *LONG)
    output, _ = second.communicate(timeout=60)
    first.kill()
    first.communicate()
    assert second.returncode == 1
    assert "another process is training" in output
    assert "Traceback" not in output
