"""What depends on the platform asks what a program is compiled for, not the machine that compiles it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config import attention_config, complete, create_model, resnet_config
from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.training import evaluate, step
from attn_cnn_jax.training.mesh import Pictures, data_mesh
from attn_cnn_jax.training.optimizer import create_optimizer

SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2, "attention_dropout": 0.0}


def programs(config: ConfigDict) -> str:
    """The traced training steps and evaluation of a configuration, as text."""
    config, mesh = complete(config), data_mesh(jax.devices()[:1])
    spec = SPECS[config.dataset.name]
    optimizer = create_optimizer(config.optimizer, lambda step: 0.1)
    skeleton, state = step.initial_state(create_model(config.model, rngs=nnx.Rngs(0)), optimizer)
    images = jnp.zeros((2 * config.train.batch_size, *spec.image_shape), jnp.uint8)
    pictures = Pictures(images, jnp.zeros(len(images), jnp.int32))
    train_steps = step.create_train_steps(config, mesh, skeleton, optimizer, spec)
    evaluation = evaluate.create_evaluate(config, mesh, skeleton, spec)
    return f"{jax.make_jaxpr(train_steps)(state, pictures, 1)} {jax.make_jaxpr(evaluation)(state, pictures)}"


@pytest.mark.parametrize("kind", ["attention", "resnet of attention"])
def test_programs_are_those_of_the_meshs_platform(kind, monkeypatch):
    """Only on CPUs are pictures split into chunks; the default backend is not asked."""
    monkeypatch.delattr(jax, "default_backend")
    if kind == "attention":
        config = attention_config(implementation="factorised", downsample=1, **SMALL)
    else:
        config = resnet_config(depth=10, layers="attention")
    config.train.update({"batch_size": 4, "eval_batch_size": 4})
    by_platform = {}
    for platform in ("cpu", "gpu", "tpu"):
        for module in (step, evaluate):
            monkeypatch.setattr(module, "platform_of", lambda mesh, platform=platform: platform)
        by_platform[platform] = programs(config)
    assert by_platform["cpu"] != by_platform["gpu"]
    chunk = "f32[4,1,32,32,8]" if kind == "attention" else "f32[4,1,34,34,64]"
    assert chunk in by_platform["cpu"]
    assert chunk not in by_platform["gpu"]
    assert chunk not in by_platform["tpu"]


def test_every_platform_computes_the_same_attention():
    config = attention_config(implementation="factorised", image_shape=(32, 40, 3), downsample=1, **SMALL).model
    network = create_model(config, rngs=nnx.Rngs(0))
    images = jnp.asarray(np.random.default_rng(0).normal(size=(4, 32, 40, 3)), jnp.float32)
    run = jax.jit(lambda platform: for_platform(network, platform)(images)[0], static_argnums=0)
    for platform in ("gpu", "tpu"):
        chex.assert_trees_all_close(run(platform), run("cpu"), rtol=1e-4, atol=1e-5)
    assert network.blocks[0].attention.platform is None
