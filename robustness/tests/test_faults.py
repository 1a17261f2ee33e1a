"""Real training processes, killed, stopped and attacked: the end is that of an uninterrupted run, bit for bit.

The short form of `python -m robustness.faults`, which attacks more often and in more ways.
"""

import random
import signal

import numpy as np
import pytest

from attn_cnn_jax import load_run
from robustness import attacks, files, hosts, surroundings
from robustness.bench import EPOCHS, PAIR_EPOCHS, Bench, Skipped, goes_on, streaming
from robustness.small_runs import comparable, epochs, fail, parameters, wait_for_records


@pytest.fixture(scope="module")
def bench(trainer, tmp_path_factory):
    return Bench(trainer, tmp_path_factory.mktemp("references"))


ATTACKS = {
    "killed": attacks.killed(2),
    "killed while streaming": streaming(attacks.killed(2), 0),
    "read-only": attacks.read_only,
    "deleted": attacks.deleted,
    "two at once": attacks.two_at_once,
    "a call fails": files.failing,
    "files are slow": files.slow_files(3),
    "Ctrl-C comes at any moment": surroundings.interrupted,
    "no stream is open": surroundings.streams("all closed"),
    "the user is not known": surroundings.environment("no user, no home"),
    "process 0 of 2 dies": hosts.one_of_two_dies(0),
    "process 1 of 2 is stopped": hosts.one_of_two_is_stopped(1),
    "process 1 has other data": hosts.different("data"),
    "process 1 is told of another number": hosts.different("number"),
    "two processes find a damaged checkpoint": hosts.damaged(attacks.truncated),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_lost_when(bench, tmp_path, name):
    try:
        ATTACKS[name](bench, tmp_path, random.Random(name))
    except Skipped as reason:
        pytest.skip(str(reason))
    finally:
        bench.trainer.end_all()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(bench, tmp_path, number):
    # where tests run in the background of a shell, Ctrl-C is ignored
    process = bench.trainer(tmp_path / "run", epochs(EPOCHS), prefix=("env", "--default-signal=INT"))
    wait_for_records(process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    assert "the same command goes on from there" in output
    assert "Traceback" not in output
    step = load_run(tmp_path / "run").step
    assert f"stopped after step {step} of" in output
    assert f"going on after step {step}" in goes_on(bench, tmp_path / "run")


def test_a_file_that_cannot_grow_is_said(bench, tmp_path):
    """As on a full disk, but without one: the first checkpoint has a larger file than the process may write."""
    bench.reference()  # whose compiled programs may be larger
    process = bench.trainer(tmp_path / "run", epochs(EPOCHS), prefix=attacks.LIMITED)
    fail(process, "cannot save a checkpoint in", "File too large\nthe same command goes on from the last checkpoint")
    goes_on(bench, tmp_path / "run")


def test_two_processes_train_as_one(bench):
    one, two = bench.reference(PAIR_EPOCHS), bench.reference(PAIR_EPOCHS, processes=2)
    said = (two.parent / f"{two.name}.log").read_text()
    assert said.count("final test accuracy") == 1  # one process speaks
    ours, theirs = comparable(two), comparable(one)
    assert [record["step"] for record in ours] == [record["step"] for record in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    for name, array in parameters(one).items():
        np.testing.assert_allclose(parameters(two)[name], array, atol=1e-4)
