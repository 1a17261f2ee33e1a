"""Attention read as a convolution: against naive loops, and exact where the theory says so."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.analysis.convolution import GivenAttention
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.theorem.to_attention import conv_to_attention
from attn_cnn_jax.theorem.to_convolution import (
    attention_to_conv,
    interior,
    mass_outside,
    output_error,
    position_attention,
    shift_weights,
    taps,
)

pytestmark = pytest.mark.usefixtures("float64")

GRID = (6, 7)
CHANNELS = 4


def layer(**model):
    """An untrained attention layer: nine quadratic heads, most of them off-centre."""
    settings = {"image_shape": (*GRID, CHANNELS), "downsample": 1, "num_layers": 1, "hidden_size": CHANNELS}
    config = attention_config(**settings | {"dtype": "float64"} | model)
    return create_model(config.model, rngs=nnx.Rngs(0)).blocks[0].attention


def images(count=2):
    return jax.random.normal(jax.random.key(0), (count, *GRID, CHANNELS), jnp.float64)


def convolved(weights, padding):
    """Attention that is a kernel, `(h, K, K) -> (h, i, j, k, l)`."""
    rows, columns = (taps(weights.shape[1], size, padding).astype(float) for size in GRID)
    return jnp.einsum("hrt,rik,tjl->hijkl", weights, rows, columns)


def naive_weights_and_mass(attention, kernel_size):
    """Loops over heads, queries and kernel entries; `kernel_size` small enough for interior queries to exist."""
    heads, height, width, _, _ = attention.shape
    weights, outside = np.zeros((heads, kernel_size, kernel_size)), np.zeros(heads)
    first = (kernel_size - 1) // 2
    rows, columns = (range(first, size - kernel_size + 1 + first) for size in (height, width))
    for h, i, j in itertools.product(range(heads), rows, columns):
        outside[h] += 1 / (len(rows) * len(columns))
        for r, c in np.ndindex(kernel_size, kernel_size):
            taken = attention[h, i, j, i + r - first, j + c - first] / (len(rows) * len(columns))
            weights[h, r, c] += taken
            outside[h] -= taken
    return weights, outside


def test_weights_and_mass_against_loops():
    attention = position_attention(layer(encoding="learned"), GRID)
    for kernel_size in (1, 2, 3, 6):
        weights, outside = naive_weights_and_mass(np.asarray(attention), kernel_size)
        np.testing.assert_allclose(shift_weights(attention, kernel_size), weights, atol=1e-14)
        np.testing.assert_allclose(mass_outside(attention, kernel_size), outside, atol=1e-13)
        np.testing.assert_allclose(outside, 1 - weights.sum(axis=(1, 2)), atol=1e-13)
    for sizes, queries in {(3, 8): [1, 6], (4, 8): [1, 5], (8, 8): [3, 3], (9, 8): [3, 3], (1, 3): [0, 2]}.items():
        assert interior(*sizes).tolist() == list(range(queries[0], queries[1] + 1))
    weights = np.asarray(shift_weights(attention, 15))  # shifts to 7, on 6x7 pixels
    assert (weights[:, :2] == 0).all()
    assert (weights[:, :, [0, -1]] == 0).all()
    assert (weights[:, 2:-2, 1:-1] > 0).all()


def test_there_and_back():
    """A convolution made attention and read back is itself, up to the bound of a finite alpha."""
    rng = np.random.default_rng(0)
    for size in (2, 5):
        kernel, bias = rng.normal(size=(size, size, 3, 2)), rng.normal(size=2)
        back = attention_to_conv(conv_to_attention(kernel, bias, sharpness=30.0).attention, size, grid=GRID)
        np.testing.assert_allclose(back.kernel, kernel, atol=1e-10)
        np.testing.assert_allclose(back.bias, bias)
        assert np.asarray(back.mass_outside).max() < 1e-10


@pytest.mark.parametrize("kernel_size", [6, 7, 13])
def test_exact_at_the_centre_once_the_kernel_covers_the_image(kernel_size):
    size = min(kernel_size, 7)
    grid = (6, 6) if kernel_size == 6 else GRID
    attention = layer()
    x = images()[:, :, : grid[1]]
    actual = attention_to_conv(attention, kernel_size, grid=grid)(x)
    centre = tuple((n - 1) // 2 for n in grid)
    np.testing.assert_allclose(actual[:, *centre], attention(x)[:, *centre], atol=1e-12)
    smaller = attention_to_conv(attention, size - 3, grid=grid)(x)
    assert np.abs(smaller - attention(x))[:, *centre].max() > 1e-3
    if kernel_size == 13:  # 2 size - 1: exact everywhere for attention by the shift alone, such as uniform attention
        attention.position.spread[...] = jnp.zeros(9)
        np.testing.assert_allclose(attention_to_conv(attention, 13, grid=GRID)(x), attention(x), atol=1e-12)


def test_sharp_heads_are_a_convolution_with_repeated_edges():
    """Softmax far outside the image picks the nearest pixel inside, everywhere."""
    attention = layer()
    attention.position.centre[...] = jnp.asarray(np.random.default_rng(0).integers(-2, 3, (9, 2)), jnp.float64)
    attention.position.spread[...] = jnp.full(9, 9.0)
    x = images()
    weights = attention_to_conv(attention, 5, grid=GRID).weights
    expected = attention(x)
    edge = GivenAttention(attention, convolved(weights, "edge"))(x)
    np.testing.assert_allclose(edge, expected, atol=1e-10)
    zeros = GivenAttention(attention, convolved(weights, "zeros"))(x)
    np.testing.assert_allclose(zeros[:, 2:-2, 2:-2], expected[:, 2:-2, 2:-2], atol=1e-10)
    assert np.abs(zeros - expected).max() > 0.1


@pytest.mark.parametrize(("kernel_size", "head_size"), [(2, 0), (3, 2), (9, 0)])
def test_given_attention_computes_the_convolution(kernel_size, head_size):
    attention, x = layer(head_size=head_size), images()
    assert (attention.value is None) == (head_size == 0)
    convolution = attention_to_conv(attention, kernel_size, grid=GRID)
    zeros = GivenAttention(attention, convolved(convolution.weights, "zeros"))(x)
    np.testing.assert_allclose(zeros, convolution(x), atol=1e-12)
    assert convolution(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    before, after = (kernel_size - 1) // 2, kernel_size // 2
    padded = jnp.pad(x, ((0, 0), (before, after), (before, after), (0, 0)), mode="edge")
    inner = convolution(padded)[:, before : before + GRID[0], before : before + GRID[1]]
    edge = GivenAttention(attention, convolved(convolution.weights, "edge"))(x)
    np.testing.assert_allclose(edge, inner, atol=1e-12)


def test_output_error_with_and_without_the_border():
    expected = np.ones((1, 5, 5, 2)) * 3
    actual = expected.copy()
    bias = np.ones(2)
    actual[:, 0] += 2.0  # an error of the size of the output, in one row of five
    everywhere, inside = output_error(jnp.asarray(expected), jnp.asarray(actual), jnp.asarray(bias), 3)
    assert everywhere == pytest.approx(np.sqrt(1 / 5))
    assert inside == 0
    assert output_error(jnp.asarray(expected), jnp.asarray(actual), jnp.asarray(bias), 1).interior == everywhere


def test_content_needs_an_attention():
    content = layer(encoding="learned", content=True)
    with pytest.raises(UserError, match="mean over images"):
        attention_to_conv(content, 3, grid=GRID)
    mean = content.probabilities(images()).mean(axis=0).reshape(-1, *GRID, *GRID)
    convolution = attention_to_conv(content, 3, grid=GRID, attention=mean)
    np.testing.assert_array_equal(convolution.weights, shift_weights(mean, 3))
    with pytest.raises(UserError, match="kernel_size=0"):
        attention_to_conv(layer(), 0, grid=GRID)
