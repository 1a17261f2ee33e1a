"""Sums of the operations of a training step, and that the profiler and the program speak of the same operations."""

import json

import numpy as np
import pytest

from attn_cnn_jax.compilation.operations import ELEMENTWISE, MOVE, PRODUCT, Operation
from attn_cnn_jax.config import attention_config, complete
from benchmarks import breakdown
from benchmarks.rates import flops_a_picture

TINY = {"hidden_size": 8, "intermediate_size": 16, "num_layers": 2, "num_heads": 4}


def operation(name, kind, *, multiply_adds=0, count=1):
    return Operation(name, kind, 0, multiply_adds, "float32", count, "f32[2]", "fusion", "jit(f)/while/body/x/dot", 0)


def test_a_row_has_the_sum_of_its_kind():
    found = [
        operation("a", PRODUCT, multiply_adds=2_000_000, count=3),
        operation("b", PRODUCT, multiply_adds=500_000),
        operation("c", ELEMENTWISE),
        operation("never run", MOVE),
    ]
    products, moves, elementwise = breakdown.by_kind(found, {"a": 0.004, "b": 0.001, "c": 0.003, "other": 9.0})
    assert products == {
        "kind": PRODUCT,
        "ms a step": pytest.approx(5.0),
        "share (%)": pytest.approx(62.5),
        "operations": 2,
        "GFLOP/s": pytest.approx(2 * 6.5 / 5),
    }
    assert (moves["ms a step"], moves["operations"]) == (0.0, 1)
    assert (elementwise["ms a step"], elementwise["share (%)"]) == (pytest.approx(3.0), pytest.approx(37.5))


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_operations_of_a_step_are_those_that_were_timed(optimizer):
    """Multiply-adds are those of the network, to the gradient by the pictures; and Muon has some of its own."""
    config = attention_config(**TINY, downsample=4, implementation="dense", dropout=0.0, attention_dropout=0.0)
    config.optimizer.name = optimizer
    config.train.batch_size = 4
    found, times, wall = breakdown.measure(complete(config), 4)
    assert 0 < sum(times[each.name] for each in found if each.name in times) < 3 * wall
    products = [each for each in found if each.kind == PRODUCT]
    assert np.mean([each.name in times for each in products]) > 0.9
    flops = 2 * sum(each.multiply_adds * each.count for each in products)
    of_pictures = 2 * 4 * 64 * 48 * 8
    expected = 4 * flops_a_picture(complete(config).model, training=True) - of_pictures
    assert flops == expected if optimizer == "sgd" else flops > 1.01 * expected


def test_prints_what_it_wrote(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(breakdown, "measure", lambda config, steps: ([operation("a", PRODUCT)], {"a": 0.5}, 0.25))
    monkeypatch.setattr(breakdown, "matrix_product_rates", lambda dtype, with_torch: {"jax 8": 3e9})
    assert breakdown.main(["--config=digits", f"--json={tmp_path / 'out.json'}"]) == 0
    printed = capsys.readouterr().out
    assert "a step takes 250.0 ms, its operations 500.0 ms" in printed
    assert "3 GFLOP/s" in printed
    assert "body/x/dot" in printed
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["seconds_a_step"], written["by_kind"][0]["ms a step"]) == (0.25, 500.0)


def test_says_which_steps_and_sets_it_takes(tmp_path, capsys):
    with pytest.raises(SystemExit):
        breakdown.main(["--steps=0"])
    assert "0" in capsys.readouterr().err
    file = tmp_path / "own.py"
    file.write_text(
        "from attn_cnn_jax.config import attention_config\n"
        "def get_config():\n    config = attention_config()\n    config.dataset.name = 'folder'\n"
        "    config.dataset.path = 'pictures'\n    return config\n"
    )
    assert breakdown.main([f"--config={file}"]) != 0
    assert "config.dataset.name='folder': to compile, allowed is one of cifar10" in capsys.readouterr().err
