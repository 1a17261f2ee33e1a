"""benchmarks/gpu.sh without its benchmarks: syntax, commands, order of stages and runs, time limit."""

import os
import re
import runpy
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
case $1 in
    train.py)
        for word in "$@"; do case $word in --workdir=*) run=${{word#--workdir=}};; esac; done
        mkdir -p "$run" && touch "$run/metrics.jsonl"
        case "$run" in */{stopped}*) exit {status};; esac;;
esac
"""
EVERY = (
    "resnet18 quadratic learned_rel learned_rel_content quadratic_generalized quadratic_generalized_pruned many_heads"
)


@pytest.fixture
def run(tmp_path):
    """Runs the script with a Python that only notes its arguments.

    `run(status, stopped, **variables)`: train.py ends with a status, for runs whose name begins with `stopped`.
    """

    def call(status=0, stopped="", **variables):
        log, python = tmp_path / "log", tmp_path / "python"
        python.write_text(STAND_IN.format(log=log, status=status, stopped=stopped))
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
def test_every_command_parses(run, tiny, monkeypatch, capsys):
    """What the script would call is handed to the commands' own parsers, with --help at the end."""
    finished, lines = run(TINY=tiny, ARCHIVE="archive.tar.gz")
    assert finished.returncode == 0, finished.stderr
    modules = [line.replace("attn_cnn_jax ", "attn_cnn_jax/").split()[1:] for line in lines if line.startswith("-m ")]
    called = {name for name, *_ in modules}
    prepared = set() if tiny else {"attn_cnn_jax/prepare"}
    names = {"benchmarks.train_step", "benchmarks.inference", "benchmarks.scaling", "benchmarks.results"}
    names |= {f"attn_cnn_jax/{name}" for name in ("compile", "figures", "page", "compare")}
    assert called == names | prepared
    monkeypatch.chdir(ROOT)
    for name, *arguments in modules:
        module, *subcommand = name.split("/")
        monkeypatch.setattr(sys, "argv", [module, *subcommand, *arguments, "--help"])
        monkeypatch.delitem(sys.modules, module, raising=False)  # runpy warns of modules already imported
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        said = capsys.readouterr()
        assert not end.value.code, said.err
        assert "usage" in said.out
    trainings = [line for line in lines if line.startswith("train.py")]
    assert [re.search(r"--config=configs/(\w+).py", line)[1] for line in trainings] == EVERY.split()
    assert all("--config.model.dtype=bfloat16 " in line + " " for line in trainings)


def test_a_run_starts_after_and_from_the_one_that_it_prunes(run, tmp_path):
    pair = "quadratic_generalized quadratic_generalized_pruned"
    finished, lines = run(STAGES="train", SEEDS="3 4", CONFIGS=pair)
    assert finished.returncode == 0, finished.stderr
    runs = [re.search(r"--workdir=\S+/runs/(\S+)", line)[1] for line in lines]
    assert runs == [f"{name}/seed_{seed}" for seed in (3, 4) for name in pair.split()]
    assert [re.search(r"--config.seed=(\d)", line)[1] for line in lines] == ["3", "3", "4", "4"]
    base = f"--config.start.run={tmp_path}/out/runs/quadratic_generalized/seed_"
    assert [word for line in lines for word in line.split() if "start.run" in word] == [f"{base}3", f"{base}4"]


def test_a_run_that_is_not_trained_to_the_end_is_not_pruned(run):
    pair = "quadratic_generalized quadratic_generalized_pruned"
    finished, lines = run(124, STAGES="train", CONFIGS=pair)
    assert finished.returncode == 0, finished.stderr
    assert "quadratic_generalized_pruned starts from quadratic_generalized, which is not trained" in finished.stderr
    assert len(lines) == 1
    finished, lines = run(0, STAGES="train", CONFIGS=pair)  # the same command again
    assert len(lines) == 2


def test_a_run_that_the_time_limit_stopped_is_reported(run):
    finished, lines = run(124, STAGES="train report", CONFIGS="quadratic resnet18", ARGS="--config.seed=1")
    assert finished.returncode == 0, finished.stderr
    trained = [line for line in lines if line.startswith("train.py")]
    assert [re.search(r"configs/(\w+)", line)[1] for line in trained] == ["quadratic", "resnet18"]
    assert all(line.endswith("--config.seed=1") for line in trained)
    assert lines[-1].startswith("-m benchmarks.results")


def test_a_run_without_heads_to_prune_is_left_out(run):
    three = "quadratic_generalized quadratic_generalized_pruned many_heads"
    finished, lines = run(1, "quadratic_generalized_pruned", STAGES="train", CONFIGS=three, TINY="1")
    assert finished.returncode == 0, finished.stderr
    assert "quadratic_generalized_pruned is left out" in finished.stderr
    assert [re.search(r"configs/(\w+)", line)[1] for line in lines] == three.split()
    assert ["start.heads=((1,1),)" in line for line in lines] == [False, True, False]


def test_a_run_that_fails_ends_the_script(run):
    finished, lines = run(1, STAGES="train report")
    assert finished.returncode == 1
    assert len(lines) == 1


def test_an_unknown_stage_is_refused(run):
    finished, lines = run(STAGES="trian")
    assert finished.returncode == 2
    assert "trian" in finished.stderr
    assert not lines
