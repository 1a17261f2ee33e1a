"""A network with merged maps is the same function with less arithmetic."""

import jax
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.models.merging import merged


# Value maps are merged where that costs less. A head's multiply-adds for one of 16 pixels: whole pixels 8 (16 + 8) =
# 192, values 3 (8 + 16 + 8) = 96 of size 3, 7 (8 + 16 + 8) = 224 of size 7; of 64 pixels 8 (64 + 8) = 576 and
# 7 (8 + 64 + 8) = 560.
@pytest.mark.parametrize(
    ("side", "values", "options"),
    [(8, True, {"head_size": 3}), (8, False, {"head_size": 7, "encoding": "learned", "content": True}),
     (16, True, {"head_size": 7})],
)  # fmt: skip
def test_logits_are_those_of_the_network(side, values, options):
    sizes = {"image_shape": (side, side, 3), "hidden_size": 8, "intermediate_size": 12, "num_layers": 2, "num_heads": 4}
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # layer norm promotes its statistics
        model = create_model(attention_config(dtype="float64", **sizes | options).model, rngs=nnx.Rngs(0))
        images = jax.random.normal(jax.random.key(0), (5, side, side, 3))
        before = nnx.state(nnx.clone(model))
        fewer = merged(model, (side, side))
        logits, expected = jax.jit(lambda x: (merged(model, (side, side))(x)[0], model(x)[0]))(images)
    np.testing.assert_allclose(logits, expected, rtol=1e-12, atol=1e-13)
    for block in fewer.blocks:
        assert block.dense is None
        assert (block.attention.value is not None) == values
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)  # left as it was


def test_a_resnet_is_returned_as_it_is():
    model = nnx.eval_shape(lambda: create_model(resnet_config().model, rngs=nnx.Rngs(0)))
    assert merged(model, (8, 8)) is model
