"""benchmarks/gpu.sh, without running a benchmark: its syntax, its commands, its stages in order, its time limit."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"

# In the place of Python: notes its arguments, ends as if the time limit had come where train.py is called.
STAND_IN = """#!/bin/sh
echo "$@" >> {log}
case $1 in train.py) exit {status};; esac
"""


@pytest.fixture
def run(tmp_path):
    """Runs the script with a Python that only notes its arguments: `run(status of train.py, **variables)`."""

    def call(status=0, **variables):
        log, python = tmp_path / "log", tmp_path / "python"
        python.write_text(STAND_IN.format(log=log, status=status))
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        log.write_text("")
        environment = os.environ | {"OUT": str(tmp_path / "out"), "PYTHON": str(python)} | variables
        finished = subprocess.run(["bash", SCRIPT], env=environment, capture_output=True, text=True, check=False)
        return finished, log.read_text().splitlines()

    return call


def test_syntax():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", SCRIPT], check=True)


@pytest.mark.parametrize("tiny", ["", "1"])
def test_every_command_parses(run, tiny):
    """What the script would call is handed to the commands' own parsers, with --help at the end."""
    finished, lines = run(TINY=tiny, ARCHIVE="archive.tar.gz")
    assert finished.returncode == 0, finished.stderr
    modules = [line.replace("attn_cnn_jax ", "attn_cnn_jax/").split()[1:] for line in lines if line.startswith("-m ")]
    called = {name for name, *_ in modules}
    prepared = set() if tiny else {"attn_cnn_jax/prepare"}
    names = {"benchmarks.train_step", "benchmarks.inference", "benchmarks.scaling", "benchmarks.results"}
    assert called == names | prepared | {"attn_cnn_jax/figures"}
    for name in sorted(called):  # one process a command; of several calls the last
        arguments = next(arguments for module, *arguments in reversed(modules) if module == name)
        command = [sys.executable, "-m", *name.split("/"), *arguments, "--help"]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
        assert "usage" in finished.stdout
    (training,) = (line for line in lines if line.startswith("train.py"))
    assert (ROOT / re.search(r"--config=(\S+)", training)[1]).is_file()
    assert "--config.model.dtype=bfloat16" in training


def test_a_run_that_the_time_limit_stopped_is_reported(run):
    finished, lines = run(124, STAGES="train report", CONFIGS="quadratic resnet18", ARGS="--config.seed=1")
    assert finished.returncode == 0, finished.stderr
    trained = [line for line in lines if line.startswith("train.py")]
    assert [re.search(r"configs/(\w+)", line)[1] for line in trained] == ["quadratic", "resnet18"]
    assert all(line.endswith("--config.seed=1") for line in trained)
    assert lines[-1].startswith("-m benchmarks.results")


def test_a_run_that_fails_ends_the_script(run):
    finished, lines = run(1, STAGES="train report")
    assert finished.returncode == 1
    assert len(lines) == 1


def test_an_unknown_stage_is_refused(run):
    finished, lines = run(STAGES="trian")
    assert finished.returncode == 2
    assert "trian" in finished.stderr
    assert not lines
