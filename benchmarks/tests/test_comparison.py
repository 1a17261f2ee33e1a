"""Ours beside PyTorch: table and JSON have every contender; the arithmetic that times are held against is XLA's."""

import contextlib
import json
import statistics

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attn_cnn_jax.analysis.flops import count_parameters
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.models.variables import join, split
from benchmarks import children, comparison, contenders, inference, rates, train_step
from benchmarks.rates import flops_a_picture

TINY = [
    "--batch_size=2",
    "--num_layers=1",
    "--image_sizes=8",
    "--repeats=1",
    "--set",
    "model.num_heads=2",
    "model.hidden_size=4",
    "model.intermediate_size=4",
]


@pytest.fixture
def in_this_process(monkeypatch):
    def call(function, *arguments, memory_limit=None):
        return function(*arguments)

    monkeypatch.setattr(comparison, "alone", call)
    monkeypatch.setitem(rates.SIDES, "cpu", (8, 16))


def check(rows, names, printed):
    """Every row has its contenders' numbers, and they are printed."""
    for row in rows:
        assert set(row["seconds"]) == set(row["memory"]) == set(names)
        for name in names:
            assert row[f"{name}/s"] == pytest.approx(2 / row["seconds"][name][0])
            assert f"{row[f'{name}/s']:.4g}" in printed
            assert row[f"x {name}"] == pytest.approx(row["seconds"][name][0] / row["seconds"]["ours"][0])
        assert row["pixels"] == "4x4"
        assert row["share"] > 0


@pytest.mark.parametrize("with_torch", [pytest.param(True, marks=pytest.mark.torch), False])
def test_training(with_torch, in_this_process, tmp_path, capsys):
    encodings, dropout = (["learned_content"], ["paper"]) if with_torch else (["quadratic"], ["outside"])
    arguments = ["--encodings", *encodings, "--dropout", *dropout, f"--json={tmp_path / 'found.json'}"]
    assert train_step.main([*arguments, *TINY]) == 0
    found, printed = json.loads((tmp_path / "found.json").read_text()), capsys.readouterr().out
    assert [(row["encoding"], row["dropout"]) for row in found["rows"]] == [
        (encoding, each) for encoding in encodings for each in dropout
    ]
    assert found["contenders"] == (["ours", "eager"] if with_torch else ["ours"])
    assert ("ours alone" in printed) != with_torch
    check(found["rows"], found["contenders"], printed)


@pytest.mark.torch
def test_inference_in_bfloat16(in_this_process, tmp_path, capsys):
    arguments = ["--encodings", "quadratic", "--dtype=bfloat16", f"--json={tmp_path / 'found.json'}"]
    with jax.numpy_dtype_promotion("standard"):  # flax's layer norm promotes
        assert inference.main([*arguments, *TINY]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["contenders"] == ["ours", "eager"]
    check(found["rows"], found["contenders"], capsys.readouterr().out)


@pytest.mark.torch
def test_a_contender_without_enough_memory_is_said(in_this_process, monkeypatch, capsys):
    def call(function, *arguments, memory_limit=None):
        return children.OUT_OF_MEMORY if "eager" in arguments else function(*arguments)

    monkeypatch.setattr(comparison, "alone", call)
    assert inference.main(["--encodings", "quadratic", *TINY]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.count(children.OUT_OF_MEMORY) == 2


def test_contenders_that_fit_one_by_one_alone_keep_their_own_times(in_this_process, monkeypatch, tmp_path, capsys):
    def call(function, *arguments, memory_limit=None):
        return children.OUT_OF_MEMORY if function is contenders.alternating else function(*arguments)

    monkeypatch.setattr(comparison, "alone", call)
    assert inference.main(["--encodings", "quadratic", f"--json={tmp_path / 'found.json'}", *TINY]) == 0
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["ours/s"] == pytest.approx(2 / statistics.median(row["seconds"]["ours"]))
    assert row["x ours"] is None
    assert f"{row['ours/s']:.4g}" in capsys.readouterr().out


def test_rows_are_kept_where_a_later_one_fails(in_this_process, monkeypatch, tmp_path):
    measure_row = comparison.row

    def row(task, names, config, *arguments):
        if config.model.content:
            raise KeyboardInterrupt
        return measure_row(task, names, config, *arguments)

    monkeypatch.setattr(comparison, "row", row)
    command = ["--encodings", "quadratic", "learned_content", f"--json={tmp_path / 'found.json'}", *TINY]
    with contextlib.suppress(KeyboardInterrupt):
        inference.main(command)
    assert [row["encoding"] for row in json.loads((tmp_path / "found.json").read_text())["rows"]] == ["quadratic"]


@pytest.mark.parametrize(
    ("benchmark", "setting"),
    [
        (inference, "model.num_layers=1"),
        (inference, "model.dtype='bfloat16'"),
        (train_step, "model.attention_dropout=0.0"),
    ],
)
def test_a_value_that_the_benchmark_chooses_is_refused(benchmark, setting, capsys):
    dropout = ["--dropout", "paper", "none"] if benchmark is train_step else []
    assert benchmark.main([*dropout, "--set", setting]) == 1
    assert capsys.readouterr().err.startswith(f"--set {setting.partition('=')[0]}: chosen by the benchmark")


@pytest.mark.parametrize("encoding", comparison.ENCODINGS)
@pytest.mark.torch
def test_pytorchs_network_has_the_same_parameters(encoding):
    from benchmarks import pytorch

    sizes = {"hidden_size": 8, "intermediate_size": 4, "num_heads": 3, "num_layers": 2, "image_shape": (8, 12, 3)}
    model = attention_config(attention_dropout=0.2, **sizes, **comparison.ENCODINGS[encoding]).model
    network = pytorch.network_of(model)
    assert sum(parameter.numel() for parameter in network.parameters()) == count_parameters(model)
    rates_of = [module.p for name, module in network.named_modules() if name.endswith("self.dropout")]
    assert rates_of == [0.2, 0.2]


def test_operations_of_one_layer_by_hand():
    """16x16 pixels, 9 heads, 400 channels: the paper's network with one layer."""
    linear = 256 * (9 * 400 * 400 + 400 * 400 + 2 * 400 * 512)  # merged value maps, dense, W1 and W2
    attention = 9 * 256 * 256 * 400
    ends = 256 * 12 * 400 + 400 * 10  # embedding of 2x2 squares, classifier
    model = attention_config(num_layers=1).model
    assert flops_a_picture(model, training=False) == 2 * (linear + attention + ends)
    assert flops_a_picture(model, training=True) == 6 * (linear + attention + ends)


@pytest.mark.parametrize("encoding", comparison.ENCODINGS)
def test_operations_of_training_are_xlas_up_to_elementwise_work(encoding, monkeypatch):
    """Those that the backward pass computes a second time are left out."""
    monkeypatch.setattr(jax, "checkpoint", lambda function, **options: function)
    sizes = {"hidden_size": 200, "intermediate_size": 256, "num_heads": 3, "num_layers": 2, "image_shape": (16, 32, 3)}
    model = attention_config(implementation="dense", **sizes, **comparison.ENCODINGS[encoding]).model
    skeleton, *arrays = split(nnx.eval_shape(lambda: create_model(model, rngs=nnx.Rngs(0))))
    picture = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    loss = lambda parameters, statistics, picture: join(skeleton, parameters, statistics)(picture)[0].sum()  # noqa: E731
    counted = jax.jit(jax.grad(loss)).lower(*arrays, picture).cost_analysis()["flops"]
    full = flops_a_picture(model, training=True)
    assert 0.98 * full <= counted <= 1.06 * full
