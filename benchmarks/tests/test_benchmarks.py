"""Each benchmark runs in a setting that takes seconds; what it prints and writes can be read. No time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = (
    "--set",
    "model.num_layers=1",
    "model.num_heads=4",
    "model.hidden_size=8",
    "model.intermediate_size=8",
    "model.image_shape=(8,8,3)",
)


def run(name, folder, *arguments):
    """What a benchmark prints, by line, and the JSON it writes."""
    command = [sys.executable, "-m", f"benchmarks.{name}", f"--json={folder / 'found.json'}", *arguments, *TINY]
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(folder)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines(), json.loads((folder / "found.json").read_text())


def test_input_beside_the_step(tmp_path):
    lines, found = run("input", tmp_path, "--batch_size=4", "--pictures=40", "--input_steps=3", "--repeats=3")
    assert found["benchmark"] == "input"
    alone, step = (found["seconds_a_batch"][name] for name in ("input alone", "training step"))
    assert len(alone) == len(step) == 3
    ratios = sorted(b / a for a, b in zip(alone, step, strict=True))
    assert found["ratio"] == pytest.approx(ratios[1])
    assert lines[1].startswith("input alone")
    assert lines[-1].startswith(f"the input alone is {ratios[1]:.0f} times as fast")


def test_startup_compiles_once(tmp_path):
    lines, found = run("startup", tmp_path, "--batch_size=4", "--repeats=1")
    assert [line.split("  ")[0] for line in lines] == ["seconds", "empty cache", "filled cache"]
    for (process,) in found["seconds"].values():
        stages = [process[stage] for stage in ("import", "network", "step")]
        assert 0 < sum(stages) < process["process"]


def test_devices_give_the_same_numbers(tmp_path):
    lines, found = run("devices", tmp_path, "--batch_size=4", "--repeats=1", "--devices", "1", "4")
    assert [row["fake devices"] for row in found["rows"]] == [1, 4]
    assert all(row["largest difference of a loss"] < 1e-5 for row in found["rows"])
    assert found["rows"][0]["times that of 1"] == 1
    assert "not the speed of real devices" in lines[-1]
