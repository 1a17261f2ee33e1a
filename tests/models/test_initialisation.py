"""What blocks start from: heads on a grid as a convolution, mimetic maps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, validate
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.theorem.bounds import attention_bound

SIZE, CHANNELS = 6, 9
pytestmark = pytest.mark.usefixtures("float64")


def config(**model):
    settings = {"dtype": "float64", "image_shape": (SIZE, SIZE, 1), "downsample": 1, "num_layers": 1}
    return attention_config(**settings | {"hidden_size": CHANNELS, "intermediate_size": 4} | model)


def layer(**model):
    validate(config(**model))
    return create_model(config(**model).model, rngs=nnx.Rngs(0)).blocks[0].attention


@pytest.mark.parametrize(("encoding", "num_heads"), [("quadratic", 16), ("quadratic_generalized", 4)])
def test_every_head_attends_to_its_shift(encoding, num_heads):
    alpha = 3.0
    attention = layer(init="grid", locality=alpha, encoding=encoding, num_heads=num_heads)
    size = int(num_heads**0.5)
    np.testing.assert_array_equal(attention.position.centre[...], kernel_shifts((size, size)))
    probabilities = np.asarray(attention.probabilities(jnp.zeros((1, SIZE, SIZE, CHANNELS))))
    for head, (row, column) in enumerate(kernel_shifts((size, size))):
        on_shift = probabilities[head, 2, 2, 2 + row, 2 + column]
        assert 1 - attention_bound(alpha) <= on_shift < 1
        ratio = on_shift / probabilities[head, 2, 2, 2 + row, 1 + column]
        np.testing.assert_allclose(ratio, np.exp(alpha), rtol=1e-12)


def test_identity_values_move_each_share_of_the_channels():
    attention = layer(init="identity", locality=40.0)
    x = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, CHANNELS))
    y = attention(x)
    for channel, (row, column) in enumerate(kernel_shifts((3, 3))):
        moved = np.roll(x, (-row, -column), axis=(1, 2))[..., channel]
        np.testing.assert_allclose(y[:, 1:-1, 1:-1, channel], moved[:, 1:-1, 1:-1], atol=1e-12)
    values = layer(init="identity", hidden_size=6, num_heads=4).merged_maps()  # six channels among four heads
    np.testing.assert_array_equal(values.sum(axis=0), np.eye(6))


@pytest.mark.parametrize(
    ("init", "sign", "head_size"), [("mimetic", -1, 0), ("mimetic", -1, 4), ("mimetic_plus", 1, 0), ("impulse", -1, 4)]
)
def test_mimetic_maps_are_noise_and_the_identity(init, sign, head_size):
    """Value maps of all heads add up to 0.4 (Z +- I), also of small heads; content maps are 0.7 (Z + I) per head."""
    content = init != "impulse"
    values = {"init": init, "head_size": head_size, "content": content, "hidden_size": 36, "num_heads": 9}
    block = create_model(config(**values).model, rngs=nnx.Rngs(0)).blocks[0]
    np.testing.assert_array_equal(block.dense.kernel[...], np.eye(36))
    total = block.attention.merged_maps().sum(axis=0)
    assert np.diag(total).mean() == pytest.approx(0.4 * sign, abs=0.05)
    assert np.std(total - np.diag(np.diag(total))) == pytest.approx(0.4 / 6, rel=0.1)
    if not content:
        on_shift = block.attention.probabilities(jnp.zeros((1, SIZE, SIZE, 36)))[0, 3, 3, 2, 2]
        assert 0.97 < on_shift < 1
        return
    maps = [x.kernel[...].reshape(36, 9, -1) for x in (block.attention.content.query, block.attention.content.key)]
    product = np.einsum("xhc,yhc->hxy", *maps)
    assert (np.linalg.matrix_rank(product) == (head_size or 36)).all()
    if not head_size:
        assert np.trace(product[4]) / 36 == pytest.approx(0.7, abs=0.1)
        assert np.std(product[4] - np.diag(np.diag(product[4]))) == pytest.approx(0.7 / 6, rel=0.1)
