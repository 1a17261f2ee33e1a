"""Ratios are fitted to times that have them; estimates are of the block in the form for the target."""

import argparse
import json

import jax
import pytest

from attn_cnn_jax.compilation import targets
from attn_cnn_jax.training.mesh import data_mesh
from benchmarks import implementations

TINY = argparse.Namespace(hidden_size=8, num_heads=4, dtype="float32")
CHIP = targets.Chip(2**34, 1e30, {"f32": 1e9, "f32 highest": 1e9, "bf16": 1e9}, 1e9)  # limited by arithmetic alone


@pytest.fixture
def target(monkeypatch):
    """A TPU that the CPU's compiler stands for."""
    monkeypatch.setattr(targets, "mesh_of", lambda target: data_mesh(jax.devices()[:1]))
    found = targets.Target("v5e:2x2", "tpu", CHIP, "")
    monkeypatch.setattr(targets, "parse", lambda name: found)
    return found


def test_ratios_that_times_were_made_of_are_found():
    ratios = {"dense": 1.0, "factorised": 7.0, "blocked": 1.5}
    samples = [
        (name, size, 100, 100 * (30.0 + 2.0 * ratio * implementations.multiply_adds(name, size)))
        for name, ratio in ratios.items()
        for size in (4, 8, 16)
    ]
    assert implementations.fit(samples) == pytest.approx(ratios)


def test_an_estimate_has_the_multiply_adds_of_a_block(target):
    """Three times those of its linear maps; and averages a fourth time, which a TPU computes again backward."""
    heads, channels, intermediate = 4, 8, 512
    linear = heads * channels**2 + channels**2 + 2 * channels * intermediate
    for size in (4, 8):
        found = implementations.estimated_block(TINY, size, 3, "dense", target)
        assert found == pytest.approx(2 * 3 * size**2 * (3 * linear + 4 * heads * channels * size**2) / 1e9)


def test_an_estimate_is_printed_with_what_auto_takes_there(target, tmp_path, capsys):
    file = tmp_path / "found.json"
    command = ["--for=v5e:2x2", "--sizes", "4", "8", "--pixels=64", "--hidden_size=8", "--num_heads=4"]
    assert implementations.main([*command, f"--json={file}"]) == 0
    found = json.loads(file.read_text())
    assert found["estimated_for"] == "v5e:2x2"
    assert [(row["pixels"], row["batch"], row["auto"]) for row in found["rows"]] == [
        ("4x4", 4, "dense"),
        ("8x8", 1, "dense"),
    ]
    assert "factorised (ms)" in capsys.readouterr().out
