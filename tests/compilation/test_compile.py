"""Small networks, compiled for a GPU and for TPUs that are not here; needs the extras compile-gpu and compile-tpu."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.compilation import hlo, operations, report, targets
from attn_cnn_jax.compilation.estimate import estimate
from attn_cnn_jax.compilation.programs import on_mesh, shape
from attn_cnn_jax.config import attention_config, complete, create_model
from attn_cnn_jax.models.variables import split

COMPILERS = {"h100": "jax_plugins.xla_cuda12", "h100x8": "jax_plugins.xla_cuda12", "v5e:2x2": "libtpu"}
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_layers": 1, "num_heads": 2, "attention_dropout": 0.0}

pytestmark = pytest.mark.slow


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(params=COMPILERS)
def target(request, monkeypatch):
    """A target whose compiler is here, with XLA's optimisations, which other tests do without."""
    if not is_installed(COMPILERS[request.param]):
        extra = "compile-tpu" if request.param.startswith("v") else "compile-gpu"
        pytest.skip(f"{COMPILERS[request.param]} is not installed (extra {extra})")
    jax.config.update("jax_disable_most_optimizations", False)
    yield targets.parse(request.param)
    jax.config.update("jax_disable_most_optimizations", True)


def digits(**model):
    config = attention_config(**SMALL | {"downsample": 1} | model)
    config.dataset.name = "digits"
    config.train.update({"batch_size": 16, "num_epochs": 3, "eval_batch_size": 40})
    return complete(config)


def test_a_step_fits_and_only_gradients_and_means_are_reduced(target):
    config = digits()
    result = report.create(config, target)
    memory, step = result["memory"], result["step"]
    assert memory["arguments"] + memory["temporaries"] <= memory["needed"] < memory["available"]
    assert result["steps"] == 3 * (1442 // 16)
    assert result["evaluations"] == 3
    assert result["run_seconds"] == pytest.approx(
        result["steps"] * step["seconds"] + 3 * result["evaluation"]["seconds"]
    )
    if result["devices"] == 1:
        assert step["collectives"] == {}
        return
    network = nnx.eval_shape(lambda: create_model(config.model, rngs=nnx.Rngs(0)))
    gradients = sum(4 * np.prod(array.shape) for array in split(network)[1].values())
    assert set(step["collectives"]) == {"all-reduce"}
    assert gradients <= step["collectives"]["all-reduce"] <= gradients + 100  # loss and accuracy too


def test_the_estimate_of_a_product_is_what_arithmetic_says(target):
    mesh = targets.mesh_of(target)
    arguments = on_mesh([shape((2048, 4096), jnp.bfloat16), shape((4096, 1024), jnp.bfloat16)], mesh)
    program = hlo.parse(jax.jit(jnp.dot).lower(*arguments).compile().as_text())
    result = estimate(operations.operations(program, program.entry), target.chip)
    assert result.flops == 2 * 2048 * 4096 * 1024
    assert result.total == pytest.approx(2 * 2048 * 4096 * 1024 / target.chip.rates["bf16"], rel=0.3)


def test_memory_of_factorised_attention_grows_as_the_pixels(target):
    """CIFAR-10 at 16x16 and at 32x32 pixels of attention."""
    needed = {}
    for downsample in (1, 2):
        config = attention_config(**SMALL, downsample=downsample, implementation="factorised", dropout=0.0)
        config.train.update({"batch_size": 8, "eval_batch_size": 8})
        needed[downsample] = report.create(complete(config), target)["memory"]["temporaries"]
    assert needed[1] <= 1.2 * 4 * needed[2]


def test_a_network_that_does_not_fit_is_refused_in_two_lines(target, capsys):
    many = ["--config.model.implementation=dense", "--config.model.downsample=1", "--config.model.num_layers=1"]
    assert main(["compile", "--config=quadratic", f"--for={target.name}", "--config.train.batch_size=4096", *many]) == 1
    error = capsys.readouterr().err
    assert "config.train.batch_size=4096 needs" in error
    assert f"{target.name} has" in error
    assert len(error.splitlines()) == 2


def test_the_command_prints_the_same_as_text_and_as_json(target, capsys):
    command = ["compile", "--config=digits", f"--for={target.name}", "--config.model.num_layers=1"]
    command += ["--config.train.batch_size=16"]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"estimate of a step: {1e3 * result['step']['seconds']:,.2f} ms" in text
    assert "not measured" in text
    assert result["step"]["largest"][0]["operation"] in text
    assert result["attention"][0] in text
