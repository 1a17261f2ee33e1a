"""Exponents of exact power laws are found; sizes, implementations and what does not fit are rows."""

import json

import pytest

from benchmarks import children, scaling


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(scaling, "alone", lambda function, *arguments, memory_limit: function(*arguments))


TINY = [
    "--num_layers=1",
    "--set",
    "model.num_heads=2",
    "model.hidden_size=4",
    "model.intermediate_size=4",
]


@pytest.mark.parametrize("power", [-1.0, 0.5, 1.0, 1.5, 2.0])
def test_exponents_of_exact_power_laws(power):
    sizes = [256, 1024, 4096, 16384]
    assert scaling.exponent(sizes, [3.5 * size**power for size in sizes]) == pytest.approx(power, abs=1e-9)


def test_exponents_are_in_pixels_and_of_training_that_fits():
    def row(implementation, side, seconds, task="training"):
        return {"implementation": implementation, "task": task, "side": side, "seconds": seconds, "MiB": 2.0 * side**2}

    rows = [row("factorised", side, 0.1 * side**3) for side in (16, 32, 128)]
    rows += [row("factorised", 224, 1.0, "inference"), row("dense", 16, 1.0), row("dense", 32, 8.0)]
    rows.append({"implementation": "dense", "task": "training", "side": 64, "seconds": "out of memory"})
    rows.append(row("dense", 8, 0.125) | {"MiB": 0.0})  # less than what the process had at hand
    found = {(fit["implementation"], fit["quantity"]): fit for fit in scaling.exponents(rows)}
    assert set(found) == {
        (implementation, quantity) for implementation in ("factorised", "dense") for quantity in ("time", "memory")
    }
    assert found["factorised", "time"]["sizes"] == "256 to 16384 pixels"
    assert found["dense", "time"]["sizes"] == "64 to 1024 pixels"
    assert found["dense", "memory"]["sizes"] == "256 to 1024 pixels"
    assert found["factorised", "time"]["exponent"] == pytest.approx(1.5)
    assert found["factorised", "time"]["of the two largest"] == pytest.approx(1.5)
    assert found["factorised", "memory"]["exponent"] == pytest.approx(1.0)
    assert found["dense", "time"]["exponent"] == pytest.approx(1.5)


def test_kernels_run_up_to_the_sides_asked_for():
    options = scaling.parse(
        ["--implementations", "factorised", "dense", "blocked", "--dense_up_to=64", "--blocked_up_to=16"]
    )
    found = [
        (task, config.model.implementation, config.model.image_shape[0], config.model.num_layers)
        for task, config in scaling.settings(options)
    ]
    assert found == [
        *(("training", "factorised", side, 6) for side in (32, 64, 128, 256)),
        *(("training", "dense", side, 6) for side in (32, 64, 128)),
        ("training", "blocked", 32, 6),
        ("inference", "factorised", 448, 1),
    ]


@pytest.mark.parametrize("key", ["num_layers=1", "implementation='dense'", "image_shape=(8,8,3)"])
def test_a_value_that_the_benchmark_chooses_is_refused(capsys, key):
    assert scaling.main(["--set", f"model.{key}"]) == 1
    assert capsys.readouterr().err == f"--set model.{key.partition('=')[0]}: chosen by the benchmark; see its --help\n"


def test_table_and_json(in_this_process, tmp_path, capsys):
    sides = ["--implementations", "dense", "--sides", "2", "4", "--forward", "6", "--repeats=1"]
    assert scaling.main([*sides, f"--json={tmp_path / 'found.json'}", *TINY]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(row["task"], row["pixels"]) for row in found["rows"]] == [
        ("training", "2x2"),
        ("training", "4x4"),
        ("inference", "6x6"),
    ]
    assert all(row["seconds"] > 0 and row["batch"] == row["layers"] == 1 for row in found["rows"])
    printed = capsys.readouterr().out
    for row in found["rows"]:
        assert f"{row['seconds']:.4g}" in printed
    for fit in found["exponents"]:
        assert f"{fit['exponent']:.4g}" in printed


def test_what_does_not_fit_is_a_row(monkeypatch, capsys):
    monkeypatch.setattr(scaling, "alone", lambda *arguments, memory_limit: children.OUT_OF_MEMORY)
    assert scaling.main(["--sides", "2", "--forward", "0", "--implementations", "dense", *TINY]) == 0
    assert children.OUT_OF_MEMORY in capsys.readouterr().out
