"""Ours beside PyTorch, scaling and breakdown, in settings that take seconds. No time is asserted."""

import json
import statistics

import jax
import pytest

from attn_cnn_jax.analysis.flops import count_parameters
from attn_cnn_jax.config import attention_config
from benchmarks import comparison, inference, measure, networks, scaling, train_step

TINY = (
    "--batch_size=2",
    "--num_layers=1",
    "--repeats=1",
    "--set",
    "model.num_heads=2",
    "model.hidden_size=4",
    "model.intermediate_size=4",
)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a benchmark in this process: `run(module, *arguments, fails=())`; what it prints, and its JSON.

    Functions in `fails` are out of memory.
    """

    def call(benchmark, *arguments, fails=()):
        def alone(function, *arguments):
            return measure.OUT_OF_MEMORY if function in fails else function(*arguments)

        for module in (comparison, scaling):
            monkeypatch.setattr(module, "alone", alone)
        assert benchmark.main([*arguments, f"--json={tmp_path / 'found.json'}", *TINY]) == 0
        return capsys.readouterr().out, json.loads((tmp_path / "found.json").read_text())

    return call


@pytest.mark.torch
@pytest.mark.parametrize(
    ("benchmark", "arguments"),
    [
        (train_step, ["--encodings", "learned_content", "--dropout", "paper"]),
        (inference, ["--encodings", "quadratic", "--dtype=bfloat16"]),
    ],
)
def test_ours_beside_pytorch(run, benchmark, arguments):
    with jax.numpy_dtype_promotion("standard"):  # flax's layer norm promotes
        printed, found = run(benchmark, "--image_sizes=8", *arguments)
    (row,) = found["rows"]
    assert row["pixels"] == "4x4"
    for name in ("ours", "eager"):
        assert row[f"{name}/s"] == pytest.approx(2 / row["seconds"][name][0])
        assert f"{row[f'{name}/s']:.4g}" in printed
        assert row[f"x {name}"] == pytest.approx(row["seconds"][name][0] / row["seconds"]["ours"][0])


def test_without_pytorch_and_without_memory(run):
    printed, found = run(inference, "--image_sizes=8", "--encodings", "quadratic", fails=[networks.alternating])
    (row,) = found["rows"]
    assert row["ours/s"] == pytest.approx(2 / statistics.median(row["seconds"]["ours"]))
    assert "ours alone" in printed
    assert measure.OUT_OF_MEMORY in run(inference, "--image_sizes=8", fails=[networks.by_itself])[0]


@pytest.mark.parametrize("benchmark", [train_step, inference, scaling])
def test_a_setting_that_the_benchmark_chooses_is_refused(benchmark, capsys):
    assert benchmark.main(["--set", "model.num_layers=2"]) == 1
    assert "chosen by the benchmark" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.parametrize("encoding", comparison.ENCODINGS)
def test_pytorchs_network_has_the_same_parameters(encoding):
    from benchmarks import pytorch

    sizes = {"hidden_size": 8, "intermediate_size": 4, "num_heads": 3, "num_layers": 2, "image_shape": (8, 12, 3)}
    model = attention_config(attention_dropout=0.2, **sizes, **comparison.ENCODINGS[encoding]).model
    network = pytorch.network_of(model)
    assert sum(parameter.numel() for parameter in network.parameters()) == count_parameters(model)
    rates = [module.p for name, module in network.named_modules() if name.endswith("self.dropout")]
    assert rates == [0.2, 0.2]


def test_scaling_has_a_row_per_size_and_exponents_of_training_that_fits(run):
    def row(implementation, side, seconds, task="training"):
        return {"implementation": implementation, "task": task, "side": side, "seconds": seconds, "MiB": 2.0 * side**2}

    rows = [row("factorised", side, 0.1 * side**3) for side in (16, 32, 128)]
    rows += [row("factorised", 224, 1.0, "inference"), row("dense", 64, "out of memory"), row("dense", 16, 1.0)]
    found = {(fit["implementation"], fit["quantity"]): fit for fit in scaling.exponents(rows)}
    assert found["factorised", "time"]["sizes"] == "256 to 16384 pixels"
    assert found["factorised", "time"]["exponent"] == pytest.approx(1.5)
    assert found["factorised", "memory"]["of the two largest"] == pytest.approx(1.0)
    assert ("dense", "time") not in found

    sides = ["--implementations", "dense", "--sides", "2", "4", "64", "--forward", "6"]
    printed, found = run(scaling, *sides)
    assert [(row["task"], row["pixels"]) for row in found["rows"]] == [
        ("training", "2x2"),
        ("training", "4x4"),
        ("inference", "6x6"),
    ]
    assert all(f"{row['seconds']:.4g}" in printed for row in found["rows"])
    assert measure.OUT_OF_MEMORY in run(scaling, *sides, fails=[networks.by_itself])[0]
