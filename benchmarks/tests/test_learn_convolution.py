"""Trainings of one number of heads and of steps share a line of the table."""

import json

import pytest

from benchmarks import learn_convolution


def training(heads, seed, steps):
    """A training whose error tells it from all others."""
    error = (100 * heads + 10 * seed) / steps
    return {
        "heads": heads,
        "seed": seed,
        "steps": steps,
        "final_error": error,
        "residual": error / 2,
        "seconds": 1.0,
        "centre": [[[0.0, 1.0]] * heads],
    }


def test_a_line_is_of_one_number_of_heads_and_of_steps():
    found = learn_convolution.rows([training(*each) for each in [(4, 0, 10), (4, 1, 10), (4, 0, 1000), (9, 0, 10)]])
    assert [(row["heads"], row["steps"], row["seeds"]) for row in found] == [(4, 10, 2), (4, 1000, 1), (9, 10, 1)]
    assert found[1]["relative error"] == "40 to 40%"


def test_the_error_printed_is_of_the_training_just_done(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(learn_convolution, "train", training)
    for steps in (1000, 10_000):
        command = [f"--out={tmp_path}", "--heads=4", "--seeds=0-1", f"--steps={steps}"]
        assert learn_convolution.main(command) == 0
        lines = capsys.readouterr().out.splitlines()[:2]
        assert [float(line.rpartition(" ")[2]) for line in lines] == pytest.approx([400 / steps, 410 / steps])
    kept = json.loads((tmp_path / "results.json").read_text())["trainings"]
    assert [(each["steps"], each["seed"]) for each in kept] == [(1000, 0), (1000, 1), (10_000, 0), (10_000, 1)]
