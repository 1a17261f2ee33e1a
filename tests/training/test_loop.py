"""The loop: no stray copies between host and device, and a killed process goes on as if nothing had happened."""

import os
import signal
import subprocess
import sys

import chex
import jax
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.loop import run

STEPS_PER_EPOCH = 1442 // 96


@pytest.fixture
def config(data_dir):
    """Three epochs with everything a run may do between two steps."""
    config = attention_config(
        image_shape=(8, 8, 1), hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4, encoding="learned"
    )
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.augment.update({"crop_padding": 1, "operations": 1})
    config.train.update({"batch_size": 96, "num_epochs": 3, "log_every_steps": 4})
    return config


def no_figures(config, step, model, workdir):
    return {}


def test_a_stray_copy_between_host_and_device_ends_training(config, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "place", lambda number, mesh: number)  # the number of steps, left on the host
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        run(config, tmp_path, no_figures)


# Trains as `run` does in a process of its own, which is killed after the second epoch, before it is saved.
KILLED = """
import os, pathlib, signal, sys
from attn_cnn_jax.runs.directory import from_json
from attn_cnn_jax.training.loop import run

def die(config, step, model, workdir):
    if step == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    return {{}}

run(from_json(pathlib.Path(sys.argv[1]).read_text()), sys.argv[2], die)
"""


def test_a_killed_process_goes_on_to_the_end_of_the_uninterrupted_run(config, tmp_path):
    (tmp_path / "config.json").write_text(directory.to_json(config))
    program = KILLED.format(step=2 * STEPS_PER_EPOCH)
    process = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "config.json", tmp_path / "killed"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    before = read_metrics(tmp_path / "killed/metrics.jsonl")
    assert before[-1]["step"] == 2 * STEPS_PER_EPOCH
    run(config, tmp_path / "killed", no_figures)
    run(config, tmp_path / "reference", no_figures)
    # Eight devices of one busy processor add up gradients in any order; robustness/ compares bit for bit on one.
    ours, theirs = (without_rates(tmp_path / name) for name in ("killed", "reference"))
    chex.assert_trees_all_close(ours, theirs, atol=1e-4)
    ours, theirs = (read_positions(tmp_path / name) for name in ("killed", "reference"))
    chex.assert_trees_all_close(ours, theirs, atol=1e-3)
    ours, theirs = (split(load_run(tmp_path / name).model)[1] for name in ("killed", "reference"))
    chex.assert_trees_all_close(ours, theirs, atol=1e-4)


def without_rates(workdir):
    records = read_metrics(workdir / "metrics.jsonl")
    return [
        {key: value for key, value in record.items() if key not in ("images_per_second", "split")} for record in records
    ]
