"""Real training processes of a run that takes seconds: how tests and benchmarks start, watch, end and compare them."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attn_cnn_jax import load_run
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.metrics import read_metrics

ROOT = Path(__file__).parents[1]

SMALL = (
    "--config.model.hidden_size=8",
    "--config.model.intermediate_size=8",
    "--config.model.num_layers=1",
    "--config.model.num_heads=4",
    "--config.model.downsample=2",
    "--config.train.batch_size=100",
    "--config.train.log_every_steps=9",
    "--config.checkpoint.every_epochs=1",
)


TIMES = ("images_per_second", "input_wait")  # of metrics


def epochs(count: int) -> str:
    """The argument for a run of this length."""
    return f"--config.train.num_epochs={count}"


class Trainer(NamedTuple):
    """Starts `python train.py` for a small run on the embedded digits: `trainer(workdir, *arguments) -> Popen`."""

    data_dir: Path
    cache_dir: Path  # of compiled programs: all processes compile the same few
    started: list[subprocess.Popen]  # so that whoever gives up a process can end it
    always: tuple[str, ...] = ()  # arguments of every process

    def __call__(
        self,
        workdir: Path,
        *arguments: str,
        program: Sequence[str] = (ROOT / "train.py",),
        prefix: Sequence[str] = (),
        pythonpath: Path | None = None,
    ) -> subprocess.Popen:
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(self.cache_dir),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XLA_FLAGS": "",
            "JAX_PLATFORMS": "cpu",
        }
        if pythonpath is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(pythonpath), environment.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [
                *prefix,
                sys.executable,
                *program,
                f"--config={ROOT / 'configs/digits.py'}",
                f"--workdir={workdir}",
                f"--config.dataset.data_dir={self.data_dir}",
                *SMALL,
                *self.always,
                *arguments,
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """Kills what was started and still runs."""
        while self.started:
            end(self.started.pop())

    def pair(
        self,
        workdir: Path,
        *arguments: str,
        second: Sequence[str] = (),
        second_prefix: Sequence[str] = (),
        only: int | None = None,
    ) -> list[subprocess.Popen]:
        """The two processes of one run, the coordinator first; the second with more arguments; or `only` one."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        together = ("--multihost", f"--coordinator-address=127.0.0.1:{port}", "--num-processes=2")
        return [
            self(workdir, *arguments, *together, f"--process-id={number}", *more, prefix=prefix)
            for number, more, prefix in ((0, (), ()), (1, second, second_prefix))
            if only in (None, number)
        ]


def finish(process: subprocess.Popen, seconds: float = 300) -> str:
    """Waits for a process that has to succeed; what it said."""
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, f"ended with {process.returncode}: {output}"
    return output


def fail(process: subprocess.Popen, *messages: str, seconds: float = 300) -> str:
    """Waits for a process that has to end with status 1, these messages and no traceback; what it said."""
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == 1, f"ended with {process.returncode}: {output}"
    for message in messages:
        assert message in output, f"{message!r} is not said: {output}"
    assert "Traceback" not in output, output
    return output


def end(process: subprocess.Popen) -> str:
    """Kills a process, if it is there still; what it said."""
    process.kill()
    return "" if process.stdout.closed else process.communicate()[0]


def wait_for_records(process: subprocess.Popen, count: int = 1) -> None:
    """Returns once the process has said so many training records."""
    for line in process.stdout:
        count -= ": train loss" in line
        if count == 0:
            return
    raise AssertionError(f"ended with {process.wait()} before it had trained so far")


def kill_at_random(process: subprocess.Popen, workdir: Path, moments: random.Random) -> bool:
    """Kills a process as it starts, as it trains, or as it saves; whether it was saving.

    Counts records instead of seconds, so that a slow machine gets as far: at most 12 records, 8 epochs.
    """
    when = moments.choice(("start", "training", "saving", "saving"))
    if when == "start":
        time.sleep(moments.uniform(0, 4))
    else:
        wait_for_records(process, moments.randint(1, 10))
        time.sleep(moments.uniform(0, 0.05))
        while when == "saving" and process.poll() is None and not being_saved(workdir):
            pass
    end(process)
    return bool(being_saved(workdir))


def finished_steps(workdir: Path) -> list[int]:
    """Of the checkpoints that are complete, in order."""
    return sorted(int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit())


def being_saved(workdir: Path) -> list[Path]:
    """What a checkpoint is called until it is complete."""
    return [path for path in (workdir / "checkpoints").glob("*") if not path.name.isdigit()]


def comparable(workdir: Path) -> list[dict]:
    """metrics.jsonl without what measures time."""
    return [
        {key: value for key, value in record.items() if key not in TIMES}
        for record in read_metrics(workdir / "metrics.jsonl")
    ]


def parameters(workdir: Path) -> dict[str, np.ndarray]:
    return split(load_run(workdir).model)[1]


def assert_same_run(workdir: Path, reference: Path) -> None:
    """AssertionError unless two runs have the same metrics and the same parameters, bit for bit."""
    ours, theirs = comparable(workdir), comparable(reference)
    differing = [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
    assert not differing, f"{len(differing)} records differ, first {differing[0]}"
    assert len(ours) == len(theirs), f"{len(ours)} records instead of {len(theirs)}"
    ours, theirs = parameters(workdir), parameters(reference)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
