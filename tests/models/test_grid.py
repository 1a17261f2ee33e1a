"""Heads on a grid begin as a convolution; gates weigh content against position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, validate
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.grid import set_values
from attn_cnn_jax.theorem.bounds import attention_bound
from attn_cnn_jax.training.optimizer import decayed

SIZE, CHANNELS = 6, 9


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def config(**model):
    settings = {"dtype": "float64", "image_shape": (SIZE, SIZE, 1), "downsample": 1, "num_layers": 1}
    return attention_config(**settings | {"hidden_size": CHANNELS, "intermediate_size": 4} | model)


def layer(**model):
    validate(config(**model))
    return create_model(config(**model).model, rngs=nnx.Rngs(0)).blocks[0].attention


@pytest.mark.parametrize("encoding", ["quadratic", "quadratic_generalized"])
@pytest.mark.parametrize("num_heads", [1, 16])
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


@pytest.mark.parametrize("head_size", [0, 4])
def test_given_values_of_heads_are_a_kernel(head_size):
    rng = np.random.default_rng(0)
    rank = head_size or CHANNELS
    kernel = rng.normal(size=(3, 3, CHANNELS, rank)) @ rng.normal(size=(3, 3, rank, CHANNELS))
    attention = layer(head_size=head_size)
    attention.position.start_on_grid(kernel_shifts((3, 3)), 40.0)
    set_values(attention, kernel.reshape(9, CHANNELS, CHANNELS))
    x = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, CHANNELS))
    layout = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(x, jnp.asarray(kernel), (1, 1), "VALID", dimension_numbers=layout)
    np.testing.assert_allclose(attention(x)[:, 1:-1, 1:-1], expected, atol=1e-11)


@pytest.mark.parametrize(("init", "sign"), [("mimetic", -1), ("mimetic_plus", 1), ("impulse", -1)])
@pytest.mark.parametrize("head_size", [0, 4])
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


def test_gate_weighs_two_softmaxes():
    attention = layer(encoding="learned", content=True, gate=True, num_heads=3)
    x = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, CHANNELS))
    pixels = SIZE**2

    def softmax(terms):
        (scores,) = terms.values()
        scores = np.exp(np.asarray(scores)).reshape(*scores.shape[:-4], pixels, pixels)
        return scores / scores.sum(axis=-1, keepdims=True)

    position, content = softmax(attention.position_terms(SIZE, SIZE)), softmax(attention.content_terms(x))
    np.testing.assert_array_equal(attention.gate[...], np.ones(3))
    attention.gate[...] = jnp.array([-50.0, 0.0, 50.0])
    mixed = attention.probabilities(x).reshape(2, 3, pixels, pixels)
    np.testing.assert_allclose(mixed[:, 0], content[:, 0], atol=1e-12)
    np.testing.assert_allclose(mixed[:, 1], (content[:, 1] + position[None, 1]) / 2, atol=1e-12)
    np.testing.assert_allclose(mixed[:, 2], np.broadcast_to(position[None, 2], mixed[:, 2].shape), atol=1e-12)
    of_gate = jax.jit(lambda gate: loss(attention, gate, x))
    gradient = jax.jit(jax.grad(of_gate))(jnp.zeros(3))
    for head, step in enumerate(1e-5 * jnp.eye(3)):
        difference = (of_gate(step) - of_gate(-step)) / 2e-5
        np.testing.assert_allclose(gradient[head], difference, rtol=1e-6)
        assert abs(difference) > 1e-4
    masks = decayed(dict.fromkeys(("blocks.0.attention.gate", "blocks.0.attention.output.kernel"), jnp.zeros(2)))
    assert masks == {"blocks.0.attention.gate": False, "blocks.0.attention.output.kernel": True}


def loss(attention, gate, x):
    """Some function of the output with the gates set."""
    graph, parameters = nnx.split(attention)
    parameters["gate"] = parameters["gate"].replace(gate)
    return jnp.square(nnx.merge(graph, parameters)(x)).sum()
