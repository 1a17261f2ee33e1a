"""A network with merged maps is the same function with less arithmetic."""

import jax
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.models.merging import merged

SHAPE = (8, 8, 3)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # layer norm promotes its statistics
        yield


def network(**options):
    options = {"hidden_size": 8, "intermediate_size": 12, "num_layers": 2, "num_heads": 4} | options
    config = attention_config(image_shape=SHAPE, dtype="float64", **options).model
    return create_model(config, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "options", [{"head_size": 3}, {"head_size": 7, "encoding": "learned", "content": True}], ids=str
)
def test_logits_are_those_of_the_network(options):
    model = network(**options)
    images = jax.random.normal(jax.random.key(0), (5, *SHAPE))
    before = nnx.state(nnx.clone(model))
    fewer = merged(model, SHAPE)
    logits, expected = jax.jit(lambda x: (merged(model, SHAPE)(x)[0], model(x)[0]))(images)
    np.testing.assert_allclose(logits, expected, rtol=1e-12, atol=1e-13)
    assert all(block.dense is None for block in fewer.blocks)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)  # left as it was


def test_value_maps_are_merged_where_that_costs_less():
    # A head's multiply-adds for one of 16 pixels. Size 7: whole pixels 8 (16 + 8) = 192, values 7 (8 + 16 + 8) = 224;
    # size 3: values 3 (8 + 16 + 8) = 96.
    assert merged(network(head_size=7), SHAPE).blocks[0].attention.value is None
    assert merged(network(head_size=3), SHAPE).blocks[0].attention.value is not None
    # Of 256 pixels: 8 (256 + 8) = 2,112 and 7 (8 + 256 + 8) = 1,904.
    assert merged(network(head_size=7), (32, 32)).blocks[0].attention.value is not None


def test_a_resnet_is_returned_as_it_is():
    model = nnx.eval_shape(lambda: create_model(resnet_config().model, rngs=nnx.Rngs(0)))
    assert merged(model, SHAPE) is model
