"""Small networks, compiled for a GPU and for TPUs that are not here; needs the extras compile-gpu and compile-tpu."""

import functools
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.compilation import report, targets
from attn_cnn_jax.compilation.estimate import estimate_program
from attn_cnn_jax.compilation.programs import on_mesh, shape
from attn_cnn_jax.compilation.report import create
from attn_cnn_jax.config import attention_config, complete, create_model
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.models.variables import join, split

COMPILERS = {"h100": "jax_plugins.xla_cuda12", "h100x8": "jax_plugins.xla_cuda12", "v5e:2x2": "libtpu"}
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_layers": 1, "num_heads": 2, "attention_dropout": 0.0}

pytestmark = pytest.mark.slow


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


several = pytest.mark.parametrize("target", ["h100x8", "v5e:2x2"], indirect=True)


@pytest.fixture
def target(request):
    """A target whose compiler is here, with XLA's optimisations, which other tests do without."""
    if not is_installed(COMPILERS[request.param]):
        extra = "compile-tpu" if request.param.startswith("v") else "compile-gpu"
        pytest.skip(f"{COMPILERS[request.param]} is not installed (extra {extra})")
    jax.config.update("jax_disable_most_optimizations", False)
    yield targets.parse(request.param)
    jax.config.update("jax_disable_most_optimizations", True)


def digits():
    config = attention_config(**SMALL, downsample=1)
    config.dataset.name = "digits"
    config.train.update({"batch_size": 16, "num_epochs": 3, "eval_batch_size": 40})
    return complete(config)


@functools.cache
def report_of(name: str) -> dict:
    """What is reported of the small network of `digits`, compiled once for all tests."""
    return create(digits(), targets.parse(name))


@several
def test_a_step_fits_and_only_gradients_and_means_are_reduced(target):
    """Gradients are summed over pictures: of parameters, but for positions of the probabilities that pictures share."""
    config, result = digits(), report_of(target.name)
    memory, step = result["memory"], result["step"]
    assert memory["arguments"] + memory["temporaries"] <= memory["needed"] < memory["available"]
    assert result["steps"] == 3 * (1442 // 16)
    assert result["evaluations"] == 3
    assert result["run_seconds"] == pytest.approx(
        result["steps"] * step["seconds"] + 3 * result["evaluation"]["seconds"]
    )
    network = nnx.eval_shape(lambda: create_model(config.model, rngs=nnx.Rngs(0)))
    sizes = {name: np.prod(array.shape) for name, array in split(network)[1].items()}
    position = sum(size for name, size in sizes.items() if "position" in name)
    assert position == 2 * (2 + 1)  # centre and spread of two heads
    loss_and_accuracy = 2
    reduced = sum(sizes.values()) - position + 2 * 64**2 + loss_and_accuracy
    assert set(step["collectives"]) == {"all-reduce"}
    assert step["collectives"]["all-reduce"] == 4 * reduced


@pytest.mark.parametrize("target", ["h100", "v5e:2x2"], indirect=True)
def test_the_estimate_of_a_product_is_what_arithmetic_says(target):
    mesh = targets.mesh_of(target)
    arguments = on_mesh([shape((2048, 4096), jnp.bfloat16), shape((4096, 1024), jnp.bfloat16)], mesh)
    result = estimate_program(jax.jit(jnp.dot).lower(*arguments).compile(), target.chip)
    assert result.flops == 2 * 2048 * 4096 * 1024
    assert result.collectives == {}
    assert result.total == pytest.approx(2 * 2048 * 4096 * 1024 / target.chip.rates["bf16"], rel=0.3)


def temporaries(implementation: str, size: int, target: targets.Target) -> int:
    """Bytes of temporaries of the gradients of one attention layer on `size x size` pixels."""
    config = attention_config(**SMALL, image_shape=(size, size, 3), downsample=1, implementation=implementation)
    network = nnx.eval_shape(lambda: create_model(config.model, rngs=nnx.Rngs(0)).blocks[0].attention)
    skeleton, parameters, statistics = split(network)

    def loss(parameters, x):
        layer = for_platform(join(skeleton, parameters, statistics), target.platform)
        return jnp.square(layer(x, jax.random.key(0))).sum()

    shapes = jax.tree.map(lambda array: shape(array.shape, array.dtype), parameters)
    arguments = on_mesh((shapes, shape((8, size, size, 16), jnp.float32)), targets.mesh_of(target))
    return report.memory_of(jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments).compile())["temporaries"]


@pytest.mark.parametrize(
    ("target", "implementation", "linear"),
    [("h100", "factorised", True), ("h100", "dense", False), ("v5e:2x2", "factorised", True)],
    indirect=["target"],
)
def test_memory_of_factorised_attention_grows_as_the_pixels(implementation, linear, target):
    # Those of few pixels lie on the chip of a TPU, where they do not count.
    sizes = (64, 128) if target.platform == "tpu" else (16, 32)
    small, large = (temporaries(implementation, size, target) for size in sizes)
    assert (large <= 1.2 * 4 * small) == linear


@several
def test_the_command_prints_the_same_as_text_and_as_json(target, capsys, monkeypatch):
    report_of(target.name)
    monkeypatch.setattr(report, "create", lambda config, target: report_of(target.name))
    command = ["compile", "--config=digits", f"--for={target.name}"]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"estimate of a step: {1e3 * result['step']['seconds']:,.2f} ms" in text
    assert "not measured" in text
    assert result["step"]["largest"][0]["operation"] in text
    assert result["attention"][0] in text
