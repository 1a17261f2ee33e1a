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
from attn_cnn_jax.models.layers import layer_norm
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.training import evaluate, step
from attn_cnn_jax.training.mesh import Pictures, data_mesh, place
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
        config = resnet_config(depth=10, width=8, layers="attention")
    config.train.update({"batch_size": 4, "eval_batch_size": 4})
    by_platform = {}
    for platform in ("cpu", "gpu", "tpu"):
        for module in (step, evaluate):
            monkeypatch.setattr(module, "platform_of", lambda mesh, platform=platform: platform)
        by_platform[platform] = programs(config)
    assert by_platform["cpu"] != by_platform["gpu"]
    chunk = "f32[4,1,32,32,8]" if kind == "attention" else "f32[4,1,34,34,8]"
    assert chunk in by_platform["cpu"]
    assert chunk not in by_platform["gpu"]
    assert chunk not in by_platform["tpu"]


NETWORKS = {
    "dense": {"implementation": "dense"},
    "value maps": {"implementation": "dense", "head_size": 3},
    "generalised": {"encoding": "quadratic_generalized", "implementation": "dense"},
    "factorised": {"implementation": "factorised", "attention_dropout_on": "factors"},
    "factorised value maps": {"implementation": "factorised", "attention_dropout_on": "factors", "head_size": 3},
    "blocked": {"encoding": "learned", "implementation": "blocked"},
    "content": {"encoding": "learned", "content": True, "implementation": "dense"},
    "content without dropout": {
        "encoding": "learned",
        "content": True,
        "implementation": "dense",
        "attention_dropout": 0.0,
    },
    "content alone": {"encoding": "content", "implementation": "dense", "attention_dropout": 0.0},
    "small heads of content": {"encoding": "content", "head_size": 3, "implementation": "dense"},
    "gated content": {"encoding": "learned", "content": True, "gate": True, "implementation": "dense"},
    "absolute": {"encoding": "absolute_learned", "implementation": "dense"},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gpus_and_tpus_compute_the_same_network_and_gradients(name):
    """With the same masks of dropped probabilities; float64, on a grid that is not square."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # as Flax's norm needs in float64
        options = SMALL | {"attention_dropout": 0.4, "dropout": 0.0, "dtype": "float64"}
        config = attention_config(**options | NETWORKS[name], image_shape=(8, 12, 3)).model
        network = create_model(config, rngs=nnx.Rngs(0))
        skeleton, parameters, statistics = split(network)
        images = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 12, 3)))

        def loss(parameters, images, platform):
            model = for_platform(join(skeleton, parameters, statistics), platform)
            logits, intermediates = model(images, key=jax.random.key(3))
            return jnp.square(logits).sum(), intermediates

        run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
        expected = run(parameters, images, "cpu")
        # Where GPUs merge queries and keys, masks lie in memory in another order.
        for platform in ("tpu",) if name == "content" else ("gpu", "tpu"):
            chex.assert_trees_all_close(run(parameters, images, platform), expected, rtol=1e-9, atol=1e-10)
            assert network.blocks[0].attention.platform is None  # left as it was
            of_platform = for_platform(network, platform)
            assert of_platform.pixels_first == (not network.depends_on_content)
            is_merged = of_platform.blocks[0].attention.merged_content() is not None
            assert is_merged == (name in ("content", "content without dropout", "content alone"))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_dropout_with_merged_content_keeps_the_mean_and_is_shared_with_gradients(platform):
    """Averages of the layer over masks are its averages without; the gradient is the slope for one mask."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        options = SMALL | {"attention_dropout": 0.4, "dtype": "float64"}
        config = attention_config(**options, encoding="learned", content=True, image_shape=(8, 12, 3)).model
        layer = for_platform(create_model(config, rngs=nnx.Rngs(0)), platform).blocks[0].attention
        x, direction = jax.random.normal(jax.random.key(1), (2, 2, 4, 6, 8), jnp.float64)
        draws = np.stack(jax.lax.map(lambda key: layer(x, key), jax.random.split(jax.random.key(0), 300)))
        standard_error = draws.std(axis=0) / np.sqrt(len(draws))
        assert (np.abs(draws.mean(axis=0) - layer(x)) < 5 * standard_error).all()
        assert np.abs(draws[0] - layer(x)).max() > 0.01
        loss = jax.jit(jax.value_and_grad(lambda x: jnp.square(layer(x, jax.random.key(3))).sum()))
        slope = (loss(x + 1e-5 * direction)[0] - loss(x - 1e-5 * direction)[0]) / 2e-5
        np.testing.assert_allclose(jnp.vdot(loss(x)[1], direction), slope, rtol=1e-7)


def test_norm_that_keeps_what_its_gradients_read_is_flaxs():
    """Value and gradients, with a scale that is zero somewhere."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # as Flax's norm needs in float64
        x, weights = jax.random.normal(jax.random.key(0), (2, 5, 3, 7), jnp.float64)
        scale, bias = jnp.arange(7.0), jnp.ones(7)

        def of_flax(x, scale, bias):
            flax = nnx.LayerNorm(7, epsilon=0.01, use_fast_variance=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
            flax.scale, flax.bias = nnx.Param(scale), nnx.Param(bias)
            return (weights * flax(x)).sum()

        def ours(x, scale, bias):
            return (weights * layer_norm(x, scale, bias, 0.01)).sum()

        expected, actual = (jax.value_and_grad(f, argnums=(0, 1, 2))(x, scale, bias) for f in (of_flax, ours))
        chex.assert_trees_all_close(actual, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize(("dropout_on", "batch_size"), [("probabilities", 8), ("factors", 6)])
def test_pixels_before_pictures_give_the_same_run_on_several_devices(dropout_on, batch_size, platform, monkeypatch):
    """Nothing but sums over pictures depends on how a batch is split: the losses of 1 and of 4 devices are equal.

    Also where they cannot share it evenly, and pictures fill it up: masks of the others stay as they are.
    """
    for module in (step, evaluate):
        monkeypatch.setattr(module, "platform_of", lambda mesh: platform)
    options = SMALL | {"attention_dropout": 0.1, "attention_dropout_on": dropout_on}
    implementation = "dense" if dropout_on == "probabilities" else "factorised"
    config = attention_config(image_shape=(8, 8, 1), downsample=1, implementation=implementation, **options)
    config.dataset.name = "digits"
    config.train.batch_size = batch_size
    config = complete(config)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (16, 8, 8, 1), dtype=np.uint8)
    pictures = Pictures(images, generator.integers(0, 10, 16).astype(np.int32))
    losses = []
    for count in (1, 4):
        mesh = data_mesh(jax.devices()[:count])
        optimizer = create_optimizer(config.optimizer, lambda step: 0.1)
        skeleton, state = step.initial_state(create_model(config.model, rngs=nnx.Rngs(0)), optimizer)
        train_steps = step.create_train_steps(config, mesh, skeleton, optimizer, SPECS["digits"])
        arguments = place((state, pictures, np.int32(2)), mesh)
        losses.append(train_steps(*arguments)[1]["loss"][:2])
        assert " all-gather(" not in train_steps.lower(*place((state, pictures, np.int32(2)), mesh)).compile().as_text()
    chex.assert_trees_all_close(*losses, rtol=1e-5)


def test_auto_takes_dense_attention_for_small_pictures_on_gpus():
    """At 16x16 pixels products are too small for the factorised form on a GPU; at 64x64 it is the cheapest anywhere."""
    taken = {}
    for side in (32, 128):
        network = create_model(attention_config(**SMALL, image_shape=(side, side, 3)).model, rngs=nnx.Rngs(0))
        for platform in ("cpu", "gpu"):
            names = for_platform(network, platform).implementations(100, (side, side, 3), training=True)
            taken[side, platform] = names[0]
    assert taken == {
        (32, "cpu"): "factorised",
        (32, "gpu"): "dense",
        (128, "cpu"): "factorised",
        (128, "gpu"): "factorised",
    }


def test_auto_takes_the_same_attention_on_several_gpus_as_on_one():
    """A device's memory decides, and its share of a batch is unknown: content of 16x16 pixels is dense in any batch."""
    taken = {}
    for side in (16, 32):
        options = SMALL | {"encoding": "content", "num_heads": 9, "downsample": 1, "attention_dropout": 0.1}
        network = create_model(attention_config(**options, image_shape=(side, side, 3)).model, rngs=nnx.Rngs(0))
        for platform in ("cpu", "gpu", "tpu"):
            for batch in (100, 800):
                on = for_platform(network, platform)
                (taken[side, platform, batch],) = on.implementations(batch, (side, side, 3), training=True)
    large = {case: name for case, name in taken.items() if case[0] == 32}
    assert set(large.values()) == {"blocked"}
    small = {case[1:]: name for case, name in taken.items() if case[0] == 16}
    assert small.pop(("cpu", 800)) == "blocked"  # its mask is drawn for the whole batch
    assert set(small.values()) == {"dense"}
