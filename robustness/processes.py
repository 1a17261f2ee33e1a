"""Real training processes of a run that takes seconds: starts, watches, ends and compares them."""

import os
import re
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
    "--config.dataset.name=digits",
    "--config.model.hidden_size=8",
    "--config.model.intermediate_size=8",
    "--config.model.num_layers=1",
    "--config.model.num_heads=4",
    "--config.model.downsample=2",
    "--config.train.batch_size=100",
    "--config.train.log_every_steps=9",
    "--config.checkpoint.every_epochs=1",
    "--config.checkpoint.keep_last=3",
)
COMPARED = ("step", "epoch", "split", "loss", "accuracy", "learning_rate")  # of a record; the others are times
SECONDS = 300  # after which a process hangs


class Trainer(NamedTuple):
    """Starts `python train.py` for a small run on scikit-learn's digits: `trainer(workdir, epochs, ...) -> Popen`.

    Attributes:
      cache_dir: of compiled programs: all processes compile the same few.
      references: folder of the runs that nobody disturbs.
    """

    cache_dir: Path
    references: Path

    def __call__(
        self, workdir: Path, epochs: int, *arguments: str, prefix: Sequence[str] = (), devices: int = 1
    ) -> subprocess.Popen:
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(self.cache_dir),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }
        command = [
            *prefix,
            sys.executable,
            ROOT / "train.py",
            f"--config={ROOT / 'configs/digits.py'}",
            f"--workdir={workdir}",
            f"--config.train.num_epochs={epochs}",
            *SMALL,
            *arguments,
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)

    def pair(self, workdir: Path, epochs: int) -> list[subprocess.Popen]:
        """Starts the two processes of one run, the coordinator first."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        together = ("--multihost", f"--coordinator-address=127.0.0.1:{port}", "--num-processes=2")
        return [self(workdir, epochs, *together, f"--process-id={number}") for number in range(2)]

    def reference(self, epochs: int, processes: int = 1) -> Path:
        """Returns a run of so many epochs that nobody disturbs; trained when it is first asked for."""
        workdir = self.references / f"{epochs}_epochs_{processes}_processes"
        if not workdir.exists():
            started = self.pair(workdir, epochs) if processes == 2 else [self(workdir, epochs)]
            for process in started:
                finish(process)
        return workdir

    def continues(
        self, workdir: Path, epochs: int, processes: int = 1, devices: int = 1, tolerance: float = 0.0
    ) -> str:
        """The same command continues from the newest finished checkpoint to the undisturbed end; returns its output."""
        steps = finished_steps(workdir)
        started = self.pair(workdir, epochs) if processes == 2 else [self(workdir, epochs, devices=devices)]
        output = "".join([finish(process) for process in started])
        if steps:
            assert re.search(rf"after step {steps[-1]} |already trained", output), f"not from {steps}: {output}"
        assert_same_run(workdir, self.reference(epochs, processes), tolerance)
        return output


def finish(process: subprocess.Popen, *statuses: int) -> str:
    """Waits for a process, which has to end with 0, or one of the statuses, without a traceback; returns its output."""
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode in (statuses or (0,)), f"ended with {process.returncode}: {output}"
    assert "Traceback" not in output, output
    return output


def fail(process: subprocess.Popen, message: str) -> None:
    """Waits for a process, which has to end with status 1 and this message."""
    output = finish(process, 1)
    assert message in output, f"{message!r} is not said: {output}"


def end(process: subprocess.Popen) -> str:
    """Kills a process, if it is there still; returns its output."""
    process.kill()
    return process.communicate()[0]


def wait_for_records(process: subprocess.Popen, workdir: Path, count: int) -> None:
    """Returns once a process has written so many more records of metrics, or has ended."""
    before = None
    while process.poll() is None:
        found = len(records(workdir))
        # A resumed run first cuts the file back.
        before = found if before is None or found < before else before
        if found >= before + count:
            return
        time.sleep(0.005)


def records(workdir: Path) -> list[dict]:
    """Returns the records of metrics.jsonl without what measures time."""
    found = read_metrics(workdir / "metrics.jsonl")
    return [{key: record[key] for key in COMPARED if key in record} for record in found]


def finished_steps(workdir: Path) -> list[int]:
    """Returns the steps of the checkpoints that are complete, in order."""
    return sorted(int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit())


def is_saving(workdir: Path) -> bool:
    """Returns whether a checkpoint is there that is not complete."""
    return any(not path.name.isdigit() for path in (workdir / "checkpoints").glob("*"))


def assert_same_run(workdir: Path, reference: Path, tolerance: float = 0.0) -> None:
    """Raises AssertionError unless two runs have the same metrics and the same parameters, bit for bit by default."""
    ours, theirs = records(workdir), records(reference)
    assert [record["step"] for record in ours] == [record["step"] for record in theirs], "other records"
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["split"] == other["split"]
        if not tolerance:
            assert mine == other, f"a record differs: {mine}, {other}"
        np.testing.assert_allclose(mine["loss"], other["loss"], rtol=tolerance)
    if not tolerance:
        ours, theirs = (split(load_run(place).model)[1] for place in (workdir, reference))
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
