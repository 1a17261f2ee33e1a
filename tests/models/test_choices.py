"""Choices of the configuration that the paper's networks leave at their defaults."""

import chex
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from tests.support import numpy_attention as naive

SMALL = {"image_shape": (8, 8, 3), "num_layers": 1, "num_heads": 4, "hidden_size": 8, "intermediate_size": 6}


def network(**model):
    return create_model(attention_config(**SMALL | model).model, rngs=nnx.Rngs(3))


def batch_norm(norm, x, train):
    """Over pictures and pixels, as it was before this call."""
    mean, variance = (
        (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else (np.asarray(norm.mean[...]), np.asarray(norm.var[...]))
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])


def convolved(layer, x, stride=1):
    return np.stack([naive.conv2d(picture, np.asarray(layer.kernel[...]), stride=stride) for picture in x])


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
