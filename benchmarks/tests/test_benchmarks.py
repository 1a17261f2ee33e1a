"""Each benchmark runs in a setting that takes seconds; what it prints and writes can be read. No time is asserted."""

import contextlib
import io
import json
from collections import namedtuple
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from attn_cnn_jax.training.mesh import data_mesh
from benchmarks import devices, inference, input, scaling, startup, train_step
from benchmarks.training import repeated

TINY = (
    "--batch_size=4",
    "--set",
    "model.num_layers=1",
    "model.num_heads=4",
    "model.hidden_size=8",
    "model.intermediate_size=8",
    "model.image_shape=(8,8,3)",
)


@pytest.fixture
def run(tmp_path, capsys):
    """What a benchmark prints, by line, and the JSON it writes: `run(module, *arguments)`."""

    def call(benchmark, *arguments):
        assert benchmark.main([f"--json={tmp_path / 'found.json'}", *arguments, *TINY]) == 0
        return capsys.readouterr().out.splitlines(), json.loads((tmp_path / "found.json").read_text())

    return call


@pytest.mark.parametrize("most", [1, 4, 256])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_all_steps_asked_for_are_done(count, most):
    """A dispatch does at most some steps: those that are left over have one of their own."""
    State = namedtuple("State", ["step"])

    def train_steps(state, pictures, count):
        assert count <= most
        losses = np.zeros(256)
        losses[:count] = state.step + np.arange(count)
        return State(state.step + count), {"loss": losses}

    train = repeated(train_steps, State(np.int32(0)), data_mesh(jax.devices()[:1]), None, most)
    np.testing.assert_array_equal(train(count), np.arange(count))


@pytest.mark.parametrize("benchmark", [train_step, inference, scaling, input, devices, startup])
def test_what_the_user_can_mend_is_said_without_a_traceback(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # conftest.py has made the devices
    assert benchmark.main(["--set", "model.num_heds=3"]) == 1
    assert "did you mean config.model.num_heads?" in capsys.readouterr().err


def test_input_beside_the_step(run):
    lines, found = run(input, "--pictures=40", "--input_steps=3", "--repeats=3")
    assert found["benchmark"] == "input"
    alone, step = (found["seconds_a_batch"][name] for name in ("input alone", "training step"))
    assert len(alone) == len(step) == 3
    ratios = sorted(b / a for a, b in zip(alone, step, strict=True))
    assert found["ratio"] == pytest.approx(ratios[1])
    assert lines[1].startswith("input alone")
    assert lines[-1].startswith(f"the input alone is {ratios[1]:.0f} times as fast")


def test_startup_is_measured_with_an_empty_and_a_filled_cache(run, monkeypatch):
    caches = []

    def in_this_process(command, env, **options):
        caches.append(env["JAX_COMPILATION_CACHE_DIR"])
        with contextlib.redirect_stdout(io.StringIO()) as said:
            startup.child(command[command.index("--child") + 1 :])
        return SimpleNamespace(stdout=said.getvalue())

    monkeypatch.setattr(startup.subprocess, "run", in_this_process)
    lines, found = run(startup, "--repeats=1")
    assert [line.split("  ")[0] for line in lines] == ["seconds", "empty cache", "filled cache"]
    first, empty, filled = caches
    assert first == filled != empty
    for (process,) in found["seconds"].values():
        stages = [process[stage] for stage in ("import", "network", "step")]
        assert 0 < sum(stages) < process["process"]


def test_devices_give_the_same_numbers(run, monkeypatch):
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # conftest.py has made the devices
    lines, found = run(devices, "--repeats=1", "--devices", "1", "4")
    assert [row["fake devices"] for row in found["rows"]] == [1, 4]
    assert all(row["largest difference of a loss"] < 1e-5 for row in found["rows"])
    assert found["rows"][0]["times that of 1"] == 1
    assert "not the speed of real devices" in lines[-1]
