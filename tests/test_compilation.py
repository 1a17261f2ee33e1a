"""What is said of a run compiled for devices that are not here; the CPU's compiler stands for theirs."""

import json
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from attn_cnn_jax import compilation
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, complete
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.training.mesh import data_mesh

SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2, "downsample": 1}
COMMAND = ["compile", "--config=digits", "--for=h100", "--config.train.batch_size=16", "--config.model.num_layers=1"]


def small():
    """A network of one layer for `digits`, complete."""
    config = attention_config(**SMALL, attention_dropout=0.0)
    config.dataset.name = "digits"
    config.train.update({"batch_size": 16, "num_epochs": 3, "eval_batch_size": 40})
    return complete(config)


@pytest.fixture
def on_cpus(monkeypatch):
    """`on_cpus(n)`: targets stand for n CPUs."""
    return lambda n: monkeypatch.setattr(compilation, "mesh_of", lambda target: data_mesh(jax.devices()[:n]))


def test_targets():
    assert compilation.parse("h100x8") == ("h100x8", "gpu", "h100", "1x1x8")
    assert compilation.parse("v5e:4x4") == ("v5e:4x4", "tpu", "v5e", "v5e:4x4")
    for name in ("", "h1000", "h100x0", "h100x9", "h100x", "v5e", "v5e:0x4", "v9:2x2", "v5e:2x2x2"):
        with pytest.raises(UserError, match=f"^--for={name}: allowed are h100, .*$"):
            compilation.parse(name)


def test_a_missing_compiler_and_a_slice_that_is_not_made_are_named(monkeypatch):
    for raised, name, said in (
        (NotImplementedError("topology not implemented for cuda"), "h100", r'pip install -e "\.\[compile-gpu\]"'),
        (RuntimeError("JAX TPU support not installed"), "v5e:2x2", r'pip install -e "\.\[compile-tpu\]"'),
        (ValueError("no such slice: 3x5"), "v5e:3x5", "XLA knows no such devices: no such slice: 3x5"),
    ):
        monkeypatch.setattr(compilation.topologies, "get_topology_desc", Mock(side_effect=raised))
        with pytest.raises(UserError, match=said):
            compilation.mesh_of(compilation.parse(name))


def test_devices_sum_gradients_loss_and_accuracy(on_cpus):
    """Gradients of the parameters, but for positions: those of the probabilities, which images share."""
    on_cpus(2)
    config = small()
    found = compilation.report(config, compilation.parse("h100x2"))
    assert found["memory"]["needed"] > found["memory"]["arguments"] > 1442 * 64  # the data set
    parameters = split(abstract_model(config.model))[1]
    at_least = sum(np.prod(array.shape) for name, array in parameters.items() if "position" not in name)
    assert set(found["collectives"]) == {"all-reduce"}
    assert 4 * at_least <= found["collectives"]["all-reduce"] <= 4 * (at_least + 2 * 64**2 + 10)


def test_collectives_are_read_from_the_program():
    program = """
      %all-reduce.1 = (f32[32,16]{1,0}, /*index=1*/bf16[16]{0}) all-reduce(%w, %bias), replica_groups=[1,4]<=[4]
      %all-gather-start = f32[8]{0} all-gather-start(%x), dimensions={0}
      %fusion = f32[100]{0} fusion(%all-reduce.1), kind=kLoop
      ROOT %all-reduce.2 = pred[] all-reduce(%p), to_apply=%or
    """
    assert compilation.collectives(program) == {"all-reduce": 4 * 512 + 2 * 16 + 1, "all-gather": 32}


def test_the_command_prints_text_and_json_and_refuses_what_does_not_fit_in_two_lines(on_cpus, monkeypatch, capsys):
    on_cpus(1)
    assert main([*COMMAND, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "report", lambda *_: result)  # compiled once
        assert main(COMMAND) == 0
    text = capsys.readouterr().out
    assert f"a step takes at least {1e3 * result['bound']['step']:,.3g} ms" in text
    assert "between devices, per step: nothing" in text
    monkeypatch.setattr(compilation, "lower", lambda *_: (Mock(), Mock()))  # compiled above
    for key, needed in (("batch_size", [2**40]), ("eval_batch_size", [2**20, 2**40])):
        monkeypatch.setattr(compilation, "memory_of", Mock(side_effect=[{"needed": size} for size in needed]))
        assert main(COMMAND) == 1
        first, second = capsys.readouterr().err.splitlines()
        assert "h100 has 79.1 GiB" in first
        assert second.startswith(f"lower config.train.{key},")
