"""Attacks on runs of several processes, for robustness.faults: hosts that differ, stop, come late or not at all."""

import random
import shutil
import signal
import socket
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import recipe
from attn_cnn_jax.data.preparation import cache, store
from attn_cnn_jax.training.hosts import END_OF_ALL, HEARTBEAT_TIMEOUT
from robustness.bench import EPOCHS, PAIR_EPOCHS, Bench
from robustness.small_runs import (
    ROOT,
    assert_same_run,
    comparable,
    end,
    epochs,
    fail,
    finish,
    finished_steps,
    kill_at_random,
    parameters,
    wait_for_records,
)


def devices(count: int) -> tuple[str, ...]:
    """Returns the prefix of a command that sees so many devices."""
    return ("env", f"XLA_FLAGS=--xla_force_host_platform_device_count={count}")


def inverted(bench: Bench, folder: Path) -> str:
    """Returns the argument for a copy of the data set with inverted training pictures."""
    dataset = sources.load("digits", bench.trainer.data_dir)
    shutil.copytree(bench.trainer.data_dir, folder / "data")
    place = store.folder(recipe("digits"), folder / "data")
    arrays = {f"{name}_{part}": getattr(getattr(dataset, name), part) for name in ("train", "test") for part in PARTS}
    cache.write(place, arrays | {"train_images": 255 - arrays["train_images"]}, cache.stamp(place))
    return f"--config.dataset.data_dir={folder / 'data'}"


PARTS = ("images", "labels")
# What process 1 gets: more arguments, given bench and folder, a command prefix; and what both must say.
DIFFERENT = {
    "seed": (lambda *_: "--config.seed=1", (), "config.seed (0 on process 0, 1 on process 1)"),
    "rate": (lambda *_: "--config.optimizer.learning_rate=0.5", (), "config.optimizer.learning_rate ("),
    "batch": (lambda *_: "--config.train.batch_size=50", (), "config.train.batch_size (100 on process 0, 50 on"),
    "length": (lambda *_: epochs(PAIR_EPOCHS + 1), (), "config.train.num_epochs (6 on process 0, 7 on"),
    "data": (inverted, (), "the data (its fingerprint) ("),
    "folder": (lambda _, folder: f"--workdir={folder / 'other'}", (), "process 1 does not see the run directory"),
    "number": (lambda *_: "--num-processes=3", (), "--num-processes (2 on process 0, 3 on process 1)"),
    "devices": (lambda *_: epochs(PAIR_EPOCHS), devices(2), "process 0 has 1, process 1 has 2"),
}


def different(name: str):
    """An attack on a run whose process 1 has something else: both refuse, and nothing is written."""
    more, prefix, said = DIFFERENT[name]

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        second = (more(bench, folder),)
        pair = bench.trainer.pair(folder / "run", epochs(PAIR_EPOCHS), second=second, second_prefix=prefix)
        for process in pair:
            fail(process, said)
        assert not list(folder.glob("*/config.json")), "a run has begun"
        return ""

    return attack


def one_of_two_dies(number: int):
    """An attack on process `number` of a run of two processes; 0 is the coordinator."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        processes = bench.trainer.pair(folder / "run", epochs(PAIR_EPOCHS))
        wait_for_records(processes[0], generator.randint(1, 4))
        end(processes[number])
        started = time.monotonic()
        fail(processes[1 - number], END_OF_ALL, seconds=HEARTBEAT_TIMEOUT)
        seconds = time.monotonic() - started
        pair_goes_on(bench, folder / "run")
        return f"the other ends after {seconds:.1f} s"

    return attack


def one_of_two_is_stopped(number: int):
    """An attack by SIGTERM on one process of two: both save and stop."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        processes = bench.trainer.pair(folder / "run", epochs(PAIR_EPOCHS))
        wait_for_records(processes[0], generator.randint(1, 4))
        processes[number].send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        codes = [process.returncode for process in processes]
        assert codes == [128 + signal.SIGTERM] * 2, f"{codes}: {outputs}"
        assert "Traceback" not in "".join(outputs), outputs
        pair_goes_on(bench, folder / "run")
        return ""

    return attack


def pair_goes_on(bench: Bench, workdir: Path) -> str:
    """The same command, by two processes, goes on from the newest checkpoint to the end of the undisturbed run."""
    steps = finished_steps(workdir)
    outputs = [finish(process) for process in bench.trainer.pair(workdir, epochs(PAIR_EPOCHS))]
    assert not steps or f"going on after step {steps[-1]} of" in outputs[0], f"not from {steps}: {outputs[0]}"
    assert_same_run(workdir, bench.reference(PAIR_EPOCHS, processes=2))
    return outputs[0]


def damaged(change: Callable[[bytes, random.Random], bytes]):
    """An attack on the newest checkpoint of a run of two processes: they use the one before."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        workdir = shutil.copytree(bench.reference(PAIR_EPOCHS, processes=2), folder / "run")
        before, newest = finished_steps(workdir)
        largest = max((workdir / f"checkpoints/{newest}").rglob("*"), key=lambda path: path.stat().st_size)
        largest.write_bytes(change(largest.read_bytes(), generator))
        outputs = [finish(process) for process in bench.trainer.pair(workdir, epochs(PAIR_EPOCHS))]
        skipped = f"skipping: the checkpoint of step {newest}" in outputs[0]
        assert f"going on after step {before if skipped else newest} of" in outputs[0], outputs
        assert_same_run(workdir, bench.reference(PAIR_EPOCHS, processes=2))
        return "" if skipped else "1 made no difference"

    return attack


def nobody_comes(number: int):
    """An attack on a process whose partner never starts: it says soon whom it waits for."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        process = bench.trainer.pair(folder / "run", epochs(1), only=number)[0]
        whom = "the other processes" if number == 0 else "process 0"
        assert any(f"process {number} of 2 waits for {whom} at" in line for line in process.stdout), "nothing is said"
        end(process)
        assert not (folder / "run").exists(), "a run has begun"
        return ""

    return attack


def strangers(bench: Bench, folder: Path, generator: random.Random) -> str:
    """Connections to the coordinator that send nothing, or anything."""
    processes = bench.trainer.pair(folder / "run", epochs(PAIR_EPOCHS))
    wait_for_records(processes[0])
    port = next(int(word.rpartition(":")[2]) for word in processes[0].args if "--coordinator-address" in str(word))
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(generator.randbytes(generator.randrange(2000)))
    for process in processes:
        finish(process)
    assert_same_run(folder / "run", bench.reference(PAIR_EPOCHS, processes=2))
    return ""


def devices_change(bench: Bench, folder: Path, generator: random.Random) -> str:
    """Killed and started again with other numbers of devices and processes: the same run, to rounding."""
    workdir, length = folder / "run", epochs(EPOCHS)
    for count in generator.sample((1, 2, 4, 5), 3):
        kill_at_random(bench.trainer(workdir, length, prefix=devices(count)), workdir, generator)
    killed = bench.trainer.pair(workdir, length)
    kill_at_random(killed[0], workdir, generator)
    end(killed[1])
    finish(bench.trainer(workdir, length, prefix=devices(generator.choice((1, 2, 4, 5)))))
    ours, theirs = comparable(workdir), comparable(bench.reference())
    assert [(r["step"], r["split"]) for r in ours] == [(r["step"], r["split"]) for r in theirs]
    np.testing.assert_allclose([r["loss"] for r in ours], [r["loss"] for r in theirs], atol=1e-4)
    ours, theirs = parameters(workdir), parameters(bench.reference())
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-3, err_msg=name)
    return ""


def old_run(bench: Bench, folder: Path, generator: random.Random) -> str:
    """A run of version 0.1.0 goes on, killed on its way, to the end that it had there."""
    workdir = folder / "run"
    with tarfile.open(ROOT / "tests/golden/version_0.1.0/quadratic.tar.xz") as archive:
        archive.extractall(workdir, filter="data")
    expected = comparable(workdir)
    as_there = ("--config.train.batch_size=96", "--config.train.log_every_steps=10", "--config.train.logger=none")
    arguments = (*as_there, "--config.model.downsample=1", epochs(2))
    process = bench.trainer(workdir, *arguments)
    time.sleep(generator.uniform(0, 8))
    end(process)
    output = finish(bench.trainer(workdir, *arguments))
    assert "going on after step" in output or "already trained" in output, output
    for ours, theirs in zip(comparable(workdir), expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(abs(ours[key] - theirs[key]) < 1e-4 for key in theirs if key != "split"), f"{ours}, not {theirs}"
    return ""
