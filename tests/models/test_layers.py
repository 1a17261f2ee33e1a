"""The pieces that networks are built from: dropout, linear maps, norms, down-sampling."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from scipy import stats

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import Block, space_to_depth
from attn_cnn_jax.models.encodings import Content, GeneralizedQuadratic, Quadratic
from attn_cnn_jax.models.layers import dropout, random_uint16

KEY = jax.random.key(0)


def test_entries_are_zero_or_scaled_at_the_rate_asked_for():
    shape, rate = (64, 50, 33), 0.1
    y = np.asarray(jax.jit(dropout, static_argnums=2)(KEY, jnp.full(shape, 3.0), rate))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 3 / (1 - rate), rtol=1e-4)  # the rate is rounded to 2^-16
    sigma = math.sqrt(rate * (1 - rate) / y.size)
    assert abs((1 - kept.mean()) - rate) < 4 * sigma
    assert abs(y.mean() / 3 - 1) < 4 * sigma / (1 - rate)
    x = jnp.asarray(y)
    chex.assert_trees_all_equal(dropout(None, x, 0.5), x)
    chex.assert_trees_all_equal(dropout(KEY, x, 0.0), x)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_dropout_scale_keeps_the_mean_exactly(rate):
    """The share of kept values of 16 bits times the scale is one: no bias from rounding the rate."""
    y = np.asarray(dropout(KEY, jnp.ones((100, 100)), rate))
    kept = 2**16 - round(rate * 2**16)
    np.testing.assert_allclose(y[y != 0], 2**16 / kept, rtol=1e-7)


def test_dropout_drops_as_many_of_the_2_to_the_16_values_as_the_rate_says():
    """A rate of n / 2^16 drops the values 0 to n - 1 and keeps n itself."""
    values = np.asarray(random_uint16(KEY, (50,)))
    n = int(values[7])
    y = np.asarray(dropout(KEY, jnp.ones(50), n / 2**16))
    np.testing.assert_array_equal(y == 0, values < n)
    assert y[7] != 0


def test_dropout_draws_every_entry_on_its_own():
    """Correlations with the neighbour along either axis, odd last axis: those that share 32 bits included."""
    keep = np.asarray(dropout(KEY, jnp.ones((501, 333)), 0.3)) != 0
    centred = keep - keep.mean()
    for a, b in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])):
        correlation = (a * b).mean() / centred.var()
        assert abs(correlation) < 4 / math.sqrt(a.size)
    pairs = centred[:, :-1:2] * centred[:, 1::2]
    assert abs(pairs.mean() / centred.var()) < 4 / math.sqrt(pairs.size)


@pytest.mark.parametrize("spec", [("data",), (None, "data"), (None, None, "data")], ids=str)
def test_dropout_is_the_same_for_any_sharding(spec):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.random.normal(KEY, (16, 24, 8))
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    assert len(spread.sharding.device_set) == 8
    drop = jax.jit(lambda x: dropout(KEY, x, 0.4))
    chex.assert_trees_all_equal(np.asarray(drop(spread)), np.asarray(drop(x)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_dropout_keeps_the_type_and_drops_the_same_entries_in_any(dtype):
    x = jnp.ones((30, 7))
    y = dropout(KEY, x.astype(dtype), 0.5)
    assert y.dtype == dtype
    chex.assert_trees_all_equal(np.asarray(y == 0), np.asarray(dropout(KEY, x, 0.5) == 0))


@pytest.mark.parametrize("last", [2, 3])
def test_sixteen_bit_integers_are_uniform(last):
    """Chi-square of the high byte and of the low byte, each against 256 equal classes."""
    numbers = np.asarray(random_uint16(KEY, (20_000, last)))
    assert numbers.dtype == np.uint16
    assert numbers.shape == (20_000, last)
    for byte in (numbers >> 8, numbers & 255):
        counts = np.bincount(byte.ravel(), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3
    for column in numbers.T:  # either half of the 32 bits
        assert stats.kstest(column / 2**16, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("size", [1, 2, 3])
def test_space_to_depth_is_a_loop_over_pixels_in_order_dy_dx_c(size):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 2 * size, 3 * size, 3)).astype(np.float32)
    expected = np.zeros((2, 2, 3, size * size * 3), np.float32)
    for i in range(2 * size):
        for j in range(3 * size):
            for c in range(3):
                channel = ((i % size) * size + j % size) * 3 + c
                expected[:, i // size, j // size, channel] = images[:, i, j, c]
    chex.assert_trees_all_equal(np.asarray(space_to_depth(jnp.asarray(images), size)), expected)


def block(dtype="float32"):
    """A block of 16 channels whose attention gives zeros. (The other generator of random bits compiles faster.)"""
    rngs = nnx.Rngs(jax.random.key(0, impl="unsafe_rbg"))
    layer = SelfAttention(Quadratic(1, rngs=rngs), num_heads=1, hidden_size=16, dtype=dtype, rngs=rngs)
    layer.output.kernel[...] = jnp.zeros_like(layer.output.kernel[...])
    layer.output.bias[...] = jnp.zeros_like(layer.output.bias[...])
    return Block(layer, hidden_size=16, intermediate_size=24, dtype=dtype, rngs=rngs)


@pytest.mark.parametrize("name", ["attention_norm", "output_norm"])
def test_layer_norm_has_epsilon_1e_12_inside_the_root(name):
    """On inputs whose variance is about epsilon: outside the root, or larger, it would show."""
    # Flax's norms promote float64 against float32 by themselves.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        norm = getattr(block("float64"), name)
        norm.scale[...] = jax.random.normal(KEY, (16,), jnp.float64)
        norm.bias[...] = jax.random.normal(jax.random.key(1), (16,), jnp.float64)
        x = 1e-6 * jax.random.normal(jax.random.key(2), (5, 16), jnp.float64)
        got = np.asarray(norm(x))
        scale, bias, x = (np.asarray(a) for a in (norm.scale[...], norm.bias[...], x))
    for row, y in zip(x, got, strict=True):
        variance = sum((v - row.mean()) ** 2 for v in row) / len(row)
        np.testing.assert_allclose(y, (row - row.mean()) / math.sqrt(variance + 1e-12) * scale + bias, rtol=1e-9)


def test_layer_norm_is_exact_far_from_zero():
    """The variance is a mean of squared distances, not a difference of large numbers, which float32 can't hold."""
    norm = block().output_norm
    x = 1000 + jnp.tile(jnp.array([-1.0, 1.0]), 8)[None]
    chex.assert_trees_all_close(norm(x), x - 1000, rtol=1e-3)


def test_feed_forward_part_uses_the_erf_gelu():
    """A block without attention and with identities for norms computes `W2 gelu(W1 x)`, checked entry by entry."""
    with jax.enable_x64(True):
        feed_forward = block("float64")
        feed_forward.dense = lambda x: x
        feed_forward.attention_norm = feed_forward.output_norm = lambda x: x
        x = 3 * jax.random.normal(KEY, (1, 2, 3, 16), jnp.float64)
        got = np.asarray(feed_forward(x) - x)
        maps = (feed_forward.intermediate, feed_forward.output)
        w1, b1, w2, b2 = (np.asarray(array[...]) for map in maps for array in (map.kernel, map.bias))
        x = np.asarray(x)
    hidden = x @ w1 + b1
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    np.testing.assert_allclose(got, gelu(hidden) @ w2 + b2, rtol=1e-11, atol=1e-13)


REFUSED = [  # what is made, and what it says
    (lambda r: attention(r, Quadratic(3, rngs=r)), "position is an encoding for 3 heads, the layer has num_heads=4"),
    (lambda r: attention(r, Quadratic(8, rngs=r)), "position is an encoding for 8 heads, the layer has num_heads=4"),
    (lambda r: attention(r, content=Content(2, 8, 8, rngs=r)), "content is an encoding for 2 heads"),
    (lambda r: attention(r, content=Content(4, 6, 8, rngs=r)), "content reads 6 channels, the layer has hidden_size=8"),
    (lambda r: attention(r, content=Quadratic(4, rngs=r)), "content=Quadratic.* does not read the image"),
    (
        lambda r: attention(r, Content(4, 8, 8, rngs=r), content=Content(4, 8, 8, rngs=r)),
        "has content scores of its own",
    ),
    (lambda r: attention(r, gated=True), "gated=True: .* give content"),
    (lambda r: attention(r, num_heads=0), "num_heads=0: allowed is an integer of at least 1"),
    (lambda r: attention(r, hidden_size=0), "hidden_size=0: allowed"),
    (lambda r: attention(r, output_size=-1), "output_size=-1: allowed"),
    (lambda r: attention(r, dropout_rate=1.0), "dropout_rate=1.0: allowed is a number from 0 to 1"),
    (lambda r: attention(r, dropout_on="rows"), "dropout_on='rows': allowed is one of probabilities, factors"),
    (lambda r: attention(r, implementation="flash"), "implementation='flash': allowed is one of auto, dense"),
    (lambda r: attention(r, GeneralizedQuadratic(4, rngs=r), dropout_on="factors"), "dropout_on='factors': attention"),
    (
        lambda r: attention(r, GeneralizedQuadratic(4, rngs=r), implementation="factorised"),
        "implementation='factorised'",
    ),
    (
        lambda r: Block(attention(r, output_size=6), hidden_size=8, intermediate_size=8, rngs=r),
        "hidden_size=8: attention",
    ),
    (lambda r: Block(attention(r), hidden_size=8, intermediate_size=0, rngs=r), "intermediate_size=0: allowed"),
    (lambda r: Block(attention(r), hidden_size=8, intermediate_size=8, dropout_rate=-0.1, rngs=r), "dropout_rate=-0.1"),
]


def attention(rngs, position=None, **options):
    position = Quadratic(options.get("num_heads") or 4, rngs=rngs) if position is None else position
    return SelfAttention(position, **{"num_heads": 4, "hidden_size": 8, "rngs": rngs} | options)


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_layers_check_their_arguments_when_they_are_made(make, says):
    with pytest.raises(UserError, match=says):
        make(nnx.Rngs(0))
