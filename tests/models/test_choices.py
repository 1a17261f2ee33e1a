"""Choices of the configuration that the paper's networks leave at their defaults."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.models.classifier import space_to_depth
from tests.support import numpy_attention as naive

SMALL = {"image_shape": (8, 8, 3), "num_layers": 1, "num_heads": 4, "hidden_size": 8, "intermediate_size": 6}


def network(**model):
    return create_model(attention_config(**SMALL | model).model, rngs=nnx.Rngs(3))


@pytest.mark.parametrize("encoding", ["quadratic", "quadratic_generalized"])
def test_initial_centres_and_spreads_have_the_deviation_of_the_configuration(encoding):
    plain, wide = (network(encoding=encoding, **more) for more in ({}, {"centre_std": 0.5, "spread_std": 0.1}))
    before, after = (model.blocks[0].attention.position for model in (plain, wide))
    chex.assert_trees_all_close(4 * after.centre[...], before.centre[...], rtol=1e-6)
    mean = np.float32(1) if encoding == "quadratic" else np.eye(2, dtype=np.float32)
    chex.assert_trees_all_close(
        np.asarray(after.spread[...]) - mean, 10 * (np.asarray(before.spread[...]) - mean), atol=1e-5
    )


ACTIVATIONS = {
    "gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_activation_is_the_one_of_the_configuration(name):
    block = network(activation=name).blocks[0]
    x = jax.random.normal(jax.random.key(0), (1, 4, 4, 8))
    attended = block.attention_norm(x + block.dense(block.attention(x)))
    inner = np.vectorize(ACTIVATIONS[name])(np.asarray(3 * block.intermediate(attended), np.float64))
    block.intermediate.kernel[...], block.intermediate.bias[...] = (
        3 * each[...] for each in (block.intermediate.kernel, block.intermediate.bias)
    )
    expected = block.output_norm(attended + block.output(jnp.asarray(inner, jnp.float32)))
    chex.assert_trees_all_close(block(x), expected, atol=1e-5)


def test_layer_norms_have_the_epsilon_of_the_configuration():
    vector = np.arange(8.0)
    for epsilon in (1e-12, 2.0):
        block = network(layer_norm_epsilon=epsilon).blocks[0]
        for norm in (block.attention_norm, block.output_norm):
            expected = naive.layer_norm(vector, np.ones(8), np.zeros(8), epsilon)
            chex.assert_trees_all_close(norm(jnp.asarray(vector, jnp.float32)), expected.astype(np.float32), rtol=1e-5)


def batch_norm(norm, x, train):
    """Over pictures and pixels, as it was before this call."""
    mean, variance = (
        (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else (np.asarray(norm.mean[...]), np.asarray(norm.var[...]))
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])


def convolved(layer, x, stride=1):
    return np.stack([naive.conv2d(picture, np.asarray(layer.kernel[...]), stride=stride) for picture in x])


def test_a_stem_stands_before_the_down_sampling(monkeypatch):
    """The stem and first stage of ResNet-18, written out; in training it uses and updates the batch's statistics."""
    monkeypatch.setattr("attn_cnn_jax.models.resnet.WIDTH", 3)
    monkeypatch.setattr("attn_cnn_jax.models.classifier.WIDTH", 3)
    model = network(stem="resnet", image_shape=(4, 4, 1), dropout=0.0, attention_dropout=0.0)
    images = np.random.default_rng(0).normal(size=(2, 4, 4, 1)).astype(np.float32)
    for train in (True, False):
        x = np.maximum(batch_norm(model.stem.norm, convolved(model.stem.conv, images), train), 0)
        for block in model.stem.blocks:
            y = np.maximum(batch_norm(block.norm1, convolved(block.conv1, x), train), 0)
            x = np.maximum(batch_norm(block.norm2, convolved(block.conv2, y), train) + x, 0)
        expected = model.embedding(space_to_depth(jnp.asarray(x, jnp.float32), 2))
        before = np.asarray(model.stem.norm.mean[...])
        key = jax.random.key(0) if train else None
        found = nnx.jit(lambda model, x, key=key: model(x, key=key)[1]["embedding"])(model, images)
        chex.assert_trees_all_close(found, expected, atol=1e-4)
        assert np.any(np.asarray(model.stem.norm.mean[...]) != before) == train


def test_deep_resnets_are_made_of_bottlenecks():
    """The second block of the second stage's beginning, written out: 1x1, 3x3 with the stride, 1x1 to four times."""
    model = create_model(resnet_config(depth=50, width=2, image_shape=(8, 8, 3)).model, rngs=nnx.Rngs(0))
    assert len(model.blocks) == 3 + 4 + 6 + 3
    assert nnx.eval_shape(lambda: model(jnp.ones((2, 8, 8, 3)))[0]).shape == (2, 10)
    block = model.blocks[3]
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 8))
    y = np.maximum(batch_norm(block.norm1, convolved(block.conv1, x), True), 0)
    y = np.maximum(batch_norm(block.norm2, convolved(block.conv2, y, stride=2), True), 0)
    y = batch_norm(block.norm3, convolved(block.conv3, y), True)
    assert y.shape == (2, 2, 2, 16)
    short = batch_norm(block.shortcut_norm, convolved(block.shortcut, x, stride=2), True)
    chex.assert_trees_all_close(
        block(jnp.asarray(x, jnp.float32), True), np.maximum(y + short, 0).astype(np.float32), atol=1e-4
    )
