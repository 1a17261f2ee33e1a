"""The pieces that networks are built from: dropout, linear maps, norms, down-sampling."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.layer import SelfAttention, for_platform
from attn_cnn_jax.models.classifier import Block
from attn_cnn_jax.models.encodings import Content, GeneralizedQuadratic, Quadratic
from attn_cnn_jax.models.layers import dropout, layer_norm, linear, normal, random_uint16, uniform

KEY = jax.random.key(0)


def test_entries_are_zero_or_scaled_at_the_rate_asked_for():
    shape, rate = (64, 50, 33), 0.1
    y = np.asarray(jax.jit(dropout, static_argnums=2)(KEY, jnp.full(shape, 3.0), rate))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 3 / (1 - rate), rtol=1e-4)  # the rate is rounded to 2^-16
    sigma = math.sqrt(rate * (1 - rate) / y.size)
    assert abs((1 - kept.mean()) - rate) < 4 * sigma
    x = jnp.asarray(y)
    chex.assert_trees_all_equal(dropout(None, x, 0.5), x)
    chex.assert_trees_all_equal(dropout(KEY, x, 0.0), x)
    narrow = dropout(KEY, jnp.full(shape, 3.0, jnp.bfloat16), rate)
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_array_equal(narrow != 0, kept)
    # A rate of n / 2^16 drops the values 0 to n - 1 and keeps n itself; the mean is kept exactly.
    values = np.asarray(random_uint16(KEY, (50,)))
    n = int(values[7])
    y = np.asarray(dropout(KEY, jnp.ones(50), n / 2**16))
    np.testing.assert_array_equal(y == 0, values < n)
    np.testing.assert_allclose(y[y != 0], 2**16 / (2**16 - n), rtol=1e-7)


def test_dropout_draws_every_entry_on_its_own():
    """Correlations with the neighbour along either axis, odd last axis: those that share 32 bits included."""
    keep = np.asarray(dropout(KEY, jnp.ones((501, 333)), 0.3)) != 0
    centred = keep - keep.mean()
    for a, b in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1]), (centred[:, 1::2], centred[:, :-1:2])):
        correlation = (a * b).mean() / centred.var()
        assert abs(correlation) < 4 / math.sqrt(a.size)
    numbers = np.asarray(random_uint16(KEY, (20_000, 3)))
    assert (numbers.dtype, numbers.shape) == (np.uint16, (20_000, 3))
    for byte in (numbers >> 8, numbers & 255):  # against 256 equal classes
        assert stats.chisquare(np.bincount(byte.ravel(), minlength=256)).pvalue > 1e-3


def block(dtype="float32"):
    rngs = nnx.Rngs(jax.random.key(0, impl="unsafe_rbg"))  # compiles faster than the default
    layer = SelfAttention(Quadratic(1, rngs=rngs), num_heads=1, hidden_size=16, dtype=dtype, rngs=rngs)
    return Block(layer, hidden_size=16, intermediate_size=24, dtype=dtype, rngs=rngs)


def test_layer_norm_has_epsilon_1e_12_inside_the_root_and_is_exact_far_from_zero():
    """On inputs whose variance is about epsilon: outside the root, or larger, it would show."""
    # Flax's norms promote float64 against float32 by themselves.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        x = 1e-6 * jax.random.normal(jax.random.key(2), (5, 16), jnp.float64)
        found = block("float64").attention_norm(x)
        expected = (x - x.mean(axis=1, keepdims=True)) / jnp.sqrt(x.var(axis=1, keepdims=True) + 1e-12)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    # Far from zero: the variance is a mean of squared distances, not a difference of large numbers.
    x = 1000 + jnp.tile(jnp.array([-1.0, 1.0]), 8)[None]
    chex.assert_trees_all_close(block().output_norm(x), x - 1000, rtol=1e-3)


def test_layers_for_cpus_are_those_of_flax_forward_and_backward():
    """A linear map and a norm: the output, tangents and gradients that Flax's modules have, which other devices run."""
    channels = 75
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        rngs = nnx.Rngs(jax.random.key(0, impl="unsafe_rbg"))
        common = {"dtype": jnp.float64, "rngs": rngs}
        network = nnx.Sequential(linear(channels, channels, **common), layer_norm(channels, **common))
        skeleton, state = nnx.split(network)
        state = jax.tree.map(lambda leaf: leaf + 0.1 * rngs.normal(leaf.shape, jnp.float64), state)
        inputs = state, rngs.normal((3, 2, 5, channels), jnp.float64)
        along, against = (jax.tree.map(lambda leaf: rngs.normal(leaf.shape, jnp.float64), inputs) for _ in range(2))

        def found(platform):
            apply = lambda state, x: for_platform(nnx.merge(skeleton, state), platform)(x)  # noqa: E731
            output, tangent = jax.jit(lambda *inputs: jax.jvp(apply, inputs, along))(*inputs)
            return output, tangent, jax.jit(lambda *inputs: jax.vjp(apply, *inputs)[1](against[1]))(*inputs)

        chex.assert_trees_all_close(found("cpu"), found("gpu"), rtol=1e-9, atol=1e-11)


def test_layers_check_their_arguments_when_they_are_made():
    rngs = nnx.Rngs(0)
    quadratic, generalised = Quadratic(4, rngs=rngs), GeneralizedQuadratic(4, rngs=rngs)
    content = Content(4, 8, 8, rngs=rngs)
    usual = {"position": quadratic, "num_heads": 4, "hidden_size": 8, "rngs": rngs}
    for says, options in {
        "position is an encoding for 3 heads, the layer has num_heads=4": {"position": Quadratic(3, rngs=rngs)},
        "content is an encoding for 2 heads": {"content": Content(2, 8, 8, rngs=rngs)},
        "content reads 6 channels, the layer has hidden_size=8": {"content": Content(4, 6, 8, rngs=rngs)},
        "content=Quadratic.* does not read the image": {"content": quadratic},
        "has content scores of its own": {"position": content, "content": content},
        "gated=True: .* give content": {"gated": True},
        "num_heads=0: allowed is an integer of at least 1": {"num_heads": 0},
        "output_size=-1: allowed": {"output_size": -1},
        "dropout_rate=1.0: allowed is a number from 0 to 1": {"dropout_rate": 1.0},
        "dropout_on='rows': allowed is one of probabilities, factors": {"dropout_on": "rows"},
        "implementation='flash': allowed is one of auto, dense": {"implementation": "flash"},
        "dropout_on='factors': attention": {"position": generalised, "dropout_on": "factors"},
        "implementation='factorised'": {"position": generalised, "implementation": "factorised"},
    }.items():
        with pytest.raises(UserError, match=says):
            SelfAttention(**usual | options)
    with pytest.raises(UserError, match="hidden_size=8: attention"):
        Block(SelfAttention(**usual, output_size=6), hidden_size=8, intermediate_size=8, rngs=rngs)


@pytest.mark.usefixtures("threefry")
@pytest.mark.parametrize("shape", [(7,), (5, 3), (3, 3, 2, 4), (300, 250)])
def test_parameters_drawn_many_at_a_time_are_those_of_their_shape(shape):
    """Below the numbers of one draw and above; in float32 and, by two words of random bits each, in float64."""
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            key = jax.random.key(3)
            expected = jax.random.uniform(key, shape, dtype, -0.5, 0.5)
            np.testing.assert_array_equal(uniform(4)(key, shape, dtype), expected)
            np.testing.assert_array_equal(jax.jit(uniform(4), static_argnums=(1, 2))(key, shape, dtype), expected)
            # a loop of another length may round the inverse of erf otherwise
            np.testing.assert_allclose(normal(key, shape, dtype), jax.random.normal(key, shape, dtype), rtol=1e-5)
