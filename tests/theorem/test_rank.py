"""The least number of heads: constructions against the convolution, bounds against many starts and certificates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.theorem.bounds import output_bound, table_bound
from attn_cnn_jax.theorem.rank import (
    effective_heads,
    few_heads,
    heads_needed,
    most_positive,
    rank_errors,
    unfolded,
)
from attn_cnn_jax.theorem.to_attention import conv_to_attention, convolutions_to_attention, layer_to_attention
from attn_cnn_jax.theorem.to_convolution import attention_to_conv
from tests.support.convolutions import apply, convolution

pytestmark = pytest.mark.usefixtures("float64")
# A few hundred products of numbers near one, times the largest condition number of patterns met here.
ROUNDING = 1e-9
BLUR = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256
SOBEL = np.outer([1.0, 2, 1], [1, 0, -1])
LAPLACE = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0.0]])
PLUS = np.array([[0, 1, 0], [1, 4, 1], [0, 1, 0.0]])


def of_rank(rng, size, rank, features, *, positive=False):
    """A kernel whose unfolding has a rank, from patterns of mixed signs or not negative."""
    patterns = rng.random((math.prod(size), rank)) if positive else rng.normal(size=(math.prod(size), rank))
    return (patterns @ rng.normal(size=(rank, math.prod(features)))).reshape(*size, *features)


def test_filters_of_one_channel_need_one_head_or_two():
    for kernel, heads in ((BLUR, 1), (PLUS, 1), (np.ones((1, 1)), 1), (SOBEL, 2), (LAPLACE, 2), (-PLUS, 1)):
        needed = heads_needed(kernel[:, :, None, None])
        assert (needed.least, needed.enough) == (heads, heads)
        random = np.random.default_rng(0).normal(size=kernel.shape)
    assert heads_needed(random[:, :, None, None]).enough <= 2
    rng = np.random.default_rng(0)
    assert heads_needed(rng.normal(size=(7, 7, 1, 4))).enough in (4, 5)  # one channel to four: four patterns
    assert heads_needed(rng.normal(size=(3, 3, 16, 16))).enough == 9  # as in the paper
    assert heads_needed(rng.normal(size=(3, 3, 3, 4, 4))).enough == 16  # in three dimensions, of at most 27
    separable = np.einsum("sm,mi,io->sio", rng.normal(size=(9, 3)), rng.normal(size=(3, 8)), rng.normal(size=(8, 8)))
    assert heads_needed(separable.reshape(3, 3, 8, 8)).enough <= 4  # depth-wise separable with three patterns
    assert heads_needed(np.zeros((3, 3, 2, 2))).enough == 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_blurs_that_fall_by_orders_of_magnitude_and_what_is_rounding_need_no_head_more(dtype):
    def gauss(size, sigma):
        return np.exp(-np.square(np.arange(size) - size // 2) / (2 * sigma**2))

    rng = np.random.default_rng(0)
    noise = {"float64": 1e-17, "float32": 1e-9}.get(dtype, 1e-4)
    corners = np.diag([0, 1.0, 0])
    corners[0, 0], corners[2, 2] = -noise, noise
    one = [
        np.outer(gauss(7, 0.7), gauss(7, 0.7)),
        np.outer(gauss(5, 0.5), gauss(5, 0.5)),
        np.array([1.0, -noise]),
        corners,
    ]
    one = [kernel[..., None, None] for kernel in one]
    one.append(rng.random((3, 3, 1, 1)) * rng.normal(size=(4, 4)))
    for kernel in one:
        kernel = kernel.astype(jnp.dtype(dtype))
        assert heads_needed(kernel)[:2] == (1, 1)
        few = few_heads(kernel, np.int64(1))
        assert few.error <= 8 * float(jnp.finfo(dtype).eps)
        assert few.is_least


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_rank_heads_where_a_vector_is_positive_else_one_more(seed, shifts, rank, positive, sparse):
    """Random kernels of every rank: exact, never fewer than the rank, and by the program's answer one more or not."""
    rng = np.random.default_rng(seed)
    kernel = of_rank(rng, (shifts,), rank := min(rank, shifts), (3, 3), positive=positive)
    if sparse and shifts > rank:
        kernel[rng.integers(shifts)] = 0  # a shift outside the support
    table, needed = unfolded(kernel), heads_needed(kernel)
    rows = table[np.any(table != 0, axis=1)]
    left, singular, _ = np.linalg.svd(rows, full_matrices=False)
    rank = int(np.sum(singular > 1e-10 * singular[0]))
    more = most_positive(left[:, :rank])[0].min() < 1e-6
    assert needed.least == needed.enough == rank + more
    assert not (positive and more)
    few = few_heads(kernel, needed.enough)
    assert few.error < 1e-10
    assert few.patterns.min() >= 0
    np.testing.assert_allclose(few.patterns.sum(axis=1), 1)
    np.testing.assert_allclose(
        few.patterns.T @ few.values.reshape(len(few.values), -1), table, atol=1e-10 * singular[0]
    )


CASES = [  # size, rank, features, options; the last two are causal
    ((3, 3), 2, (2, 3), {"stride": 2}),
    ((3, 2), 3, (2, 2), {"dilation": 2, "padding": "VALID"}),
    ((4,), 1, (3, 2), {"padding": ((3, 0),)}),
    ((3,), 3, (2, 2), {"padding": ((4, 0),), "dilation": 2}),
]


@pytest.mark.parametrize(("size", "rank", "features", "options"), CASES)
def test_the_fewest_heads_are_the_convolution_within_the_bound(size, rank, features, options):
    rng = np.random.default_rng(len(size))
    kernel, x = (
        of_rank(rng, size, rank, features),
        jnp.asarray(rng.normal(size=(2, *(n + 5 for n in size), features[0]))),
    )
    expected = convolution(x, kernel, **options)
    for s in (math.inf, 4.0, 20.0):
        layer = conv_to_attention(kernel, heads="fewest", sharpness=s, **options)
        assert rank <= layer.attention.num_heads <= rank + 1
        size = x.shape[1:-1] if kernel.ndim == 4 else (1, *x.shape[1:-1])
        pixels = math.prod(n + sum(pads) for n, pads in zip(size, layer.pads(size), strict=True))
        bound = output_bound(kernel, x, mass=table_bound(s, pixels))
        assert (np.abs(apply(layer, x) - expected) <= bound + ROUNDING).all()


def test_few_heads_are_a_convolution_of_three_axes():
    """The sum over heads and shifts, written out: layers themselves have two axes, and say so."""
    rng, kernel = np.random.default_rng(0), of_rank(np.random.default_rng(1), (3, 2, 3), 4, (2, 3))
    x = rng.normal(size=(4, 5, 6, 2))
    needed = heads_needed(kernel)
    few = few_heads(kernel, needed.enough)
    assert (needed.least, len(few.patterns)) in ((4, 4), (5, 5))
    made = sum(
        weight * x[r : 2 + r, s : 4 + s, t : 4 + t] @ values
        for pattern, values in zip(few.patterns, few.values, strict=True)
        for weight, (r, s, t) in zip(pattern, np.ndindex(3, 2, 3), strict=True)
    )
    expected = convolution(x[None], kernel, padding="VALID")
    np.testing.assert_allclose(made, expected[0], atol=ROUNDING)
    with pytest.raises(UserError, match="few_heads makes their patterns"):
        conv_to_attention(kernel)


def test_the_bound_outside_the_patterns_is_tight():
    """Ones in two thirds of an image, none of them near the queries: at least 40% of the bound."""
    kernel, x = np.abs(of_rank(np.random.default_rng(0), (3, 3), 2, (1, 1))), np.zeros((1, 12, 12, 1))
    x[0, 4:] = 1
    x = jnp.asarray(x)
    for sharpness in (3.0, 6.0, 12.0):
        layer = conv_to_attention(kernel, heads="fewest", sharpness=sharpness)
        error = np.abs(apply(layer, x) - convolution(x, kernel))[0, 0]
        bound = output_bound(kernel, x, mass=table_bound(sharpness, 14 * 14))
        assert 0.4 * bound <= error.max() <= bound


@pytest.mark.parametrize(("rank", "positive"), [(1, False), (2, True), (2, False), (4, False), (9, False)])
def test_with_one_head_fewer_no_fit_is_below_eckart_and_young(rank, positive):
    """Gradient descent from many starts over scores, the best value maps for each, against the singular values."""
    kernel = of_rank(np.random.default_rng(rank), (3, 3), rank, (3, 3), positive=positive)
    table, needed = unfolded(kernel), heads_needed(kernel)
    bound = rank_errors(np.linalg.svd(table, compute_uv=False))

    def error(scores):
        basis = jnp.linalg.qr(jax.nn.softmax(scores, axis=-1).T)[0]
        return jnp.sum((table - basis @ (basis.T @ table)) ** 2) / np.sum(table**2)

    def fitted(heads):
        step = jax.jit(jax.vmap(jax.value_and_grad(error)))
        scores = jax.random.normal(jax.random.key(0), (32, heads, 9)) * 2
        best, momentum = math.inf, jnp.zeros_like(scores)
        for _ in range(300):
            values, gradient = step(scores)
            momentum = 0.9 * momentum + gradient
            scores, best = scores - 2.0 * momentum, min(best, float(values.min()))
        return math.sqrt(best)

    fewer = needed.least - 1
    if fewer:
        found = fitted(fewer)
        assert found >= bound[fewer] - 1e-12
        assert few_heads(kernel, fewer).error >= bound[fewer] - 1e-12
        assert found > 1e-3  # also where the rank itself is `fewer`, and no positive vector in its space
    few = few_heads(kernel, needed.enough)
    assert few.error < 1e-12
    assert few.patterns.min() >= 0
    np.testing.assert_allclose(few.patterns.sum(axis=1), 1)


def test_positive_vectors_and_the_proof_where_there_are_none():
    """Weak duality by hand: for `y >= 0` of sum one, `min(basis c) <= y . basis c <= |basis^T y|_1`."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(40):
        size = int(rng.integers(2, 10))
        basis = np.linalg.qr(rng.normal(size=(size, int(rng.integers(1, size + 1)))))[0]
        vector, y = most_positive(basis)
        margin = max(vector.min(), 0)
        np.testing.assert_allclose(basis @ (basis.T @ vector), vector, atol=1e-9)
        assert np.abs(basis.T @ vector).max() <= 1 + 1e-7
        assert y.min() >= -1e-9
        assert y.sum() == pytest.approx(1)
        assert np.abs(basis.T @ y).sum() == pytest.approx(margin, abs=1e-7)
        seen.add(margin > 1e-6)
    assert seen == {True, False}


def test_a_number_of_heads_is_within_one_of_the_best():
    for seed in range(4):
        kernel = of_rank(np.random.default_rng(seed), (3, 3), 9, (4, 4))
        needed = heads_needed(kernel)
        for n in range(1, 12):
            few = few_heads(kernel, n)
            assert len(few.patterns) == n
            best = needed.error[min(n, 9)]
            assert best - 1e-12 <= few.error <= needed.error[min(n, 9) - 1] + 1e-12
            if few.is_least:
                assert few.error == pytest.approx(best, abs=1e-12)
        for tolerance in (0.05, 0.2, 0.5):
            some = heads_needed(kernel, tolerance)
            assert few_heads(kernel, some.enough).error <= tolerance
            assert needed.error[some.least - 1] > tolerance
            assert some.least <= some.enough <= some.least + 1
    x = jax.random.normal(jax.random.key(0), (1, 6, 6, 4))
    few = few_heads(kernel, 5)
    made = np.einsum("hs,hdo->sdo", few.patterns, few.values).reshape(kernel.shape)
    np.testing.assert_allclose(apply(conv_to_attention(kernel, heads=5), x), convolution(x, made), atol=ROUNDING)


@pytest.mark.parametrize("groups", [2, 4])
def test_grouped_and_depth_wise_convolutions(groups):
    rng = np.random.default_rng(0)
    kernel, x = rng.normal(size=(3, 3, 4 // groups, 4)), jnp.asarray(rng.normal(size=(2, 6, 5, 4)))
    expected = convolution(x, kernel, groups=groups, stride=2)
    for heads in (None, "fewest"):
        layer = conv_to_attention(kernel, groups=groups, stride=2, heads=heads)
        np.testing.assert_allclose(apply(layer, x), expected, atol=ROUNDING)
    if groups == 4:
        assert layer.attention.num_heads in (4, 5)
    flax = nnx.Conv(4, 4, (3, 3), feature_group_count=groups, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(apply(layer_to_attention(flax, heads="fewest"), x), apply(flax, x), atol=ROUNDING)


def test_there_and_back():
    rng = np.random.default_rng(0)
    for kernel, dilation in (
        (of_rank(rng, (3, 3), 2, (3, 2)), 1),
        (of_rank(rng, (3, 3), 3, (2, 2)), 2),
        (PLUS[:, :, None, None], 1),
    ):
        layer, size = (
            conv_to_attention(kernel, np.arange(kernel.shape[-1]) + 0.5, heads="fewest", dilation=dilation),
            1 + 2 * dilation,
        )
        back = attention_to_conv(layer.attention, size, grid=(9, 8))
        dilated = np.zeros((size, size, *kernel.shape[2:]))
        dilated[::dilation, ::dilation] = kernel
        np.testing.assert_allclose(back.kernel, dilated, atol=ROUNDING)
        assert np.abs(back.mass_outside).max() < 1e-12
        # The layer of attention itself, padded and cropped.
        x = jnp.pad(jnp.asarray(rng.normal(size=(1, 7, 6, kernel.shape[2]))), ((0, 0), (2, 2), (2, 2), (0, 0)))
        found = apply(layer.attention, x)[:, 2:-2, 2:-2]
        np.testing.assert_allclose(found, apply(layer, x[:, 2:-2, 2:-2]), atol=ROUNDING)


def test_whole_networks_with_few_heads():
    class Network(nnx.Module):
        def __init__(self, rngs):
            common = {"param_dtype": jnp.float64, "rngs": rngs}
            self.first, self.second = nnx.Conv(1, 3, (3, 3), **common), nnx.Conv(3, 3, (3, 3), strides=2, **common)

        def __call__(self, x):
            return self.second(jnp.tanh(self.first(x)))

    network, x = Network(nnx.Rngs(0)), jax.random.normal(jax.random.key(1), (2, 7, 6, 1))
    attention = convolutions_to_attention(network, heads="fewest")
    assert attention.first.attention.num_heads in (3, 4)
    np.testing.assert_allclose(apply(attention, x), expected := apply(network, x), atol=ROUNDING)
    some = convolutions_to_attention(network, heads="fewest", tolerance=0.3)
    assert some.second.attention.num_heads < 9
    assert 0 < np.abs(apply(some, x) - expected).max() < 3


def test_effective_heads_of_a_layer():
    """Those of the kernel that it makes: copies, zeros and mixtures of heads do not count."""
    rng = np.random.default_rng(0)
    patterns, maps = rng.random((4, 20)), rng.normal(size=(4, 3, 5))
    assert effective_heads(patterns, maps, 1e-6) == 4
    again = np.concatenate([patterns, patterns[:2], rng.random((1, 20)), patterns.mean(axis=0, keepdims=True)])
    more = np.concatenate([maps, rng.normal(size=(2, 3, 5)), np.zeros((1, 3, 5)), rng.normal(size=(1, 3, 5))])
    assert effective_heads(again, more, 1e-6) == 4
    made = np.einsum("hn,hdo->ndo", again, more)
    errors = rank_errors(np.linalg.svd(made.reshape(20, -1), compute_uv=False))
    for tolerance in (0.01, 0.1, 0.4):
        assert effective_heads(again, more, tolerance) == np.argmax(errors <= tolerance)
    # A layer made from a kernel counts as many as the kernel needs, less the one for signs.
    kernel = of_rank(rng, (3, 3), 3, (4, 4))
    few = few_heads(kernel, 4)
    assert effective_heads(few.patterns, few.values, 1e-6) == 3
    assert effective_heads(np.ones((2, 4)), np.zeros((2, 1, 1))) == 0


IMPOSSIBLE = {
    "heads=0": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), heads=0),
    "heads=2.5": lambda: few_heads(np.ones((3, 3, 1, 1)), 2.5),
    "real": lambda: heads_needed(np.full((3, 3, 1, 1), 1j)),
    "heads='few'": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), heads="few"),
    "groups=3": lambda: conv_to_attention(np.ones((3, 3, 1, 4)), groups=3),
    "tolerance=1": lambda: heads_needed(np.ones((3, 3, 1, 1)), 1),
    "finite": lambda: heads_needed(np.full((3, 3, 1, 1), np.nan)),
    "either alpha or mass": lambda: output_bound(np.ones((3, 3, 1, 1)), np.ones((1, 1))),
    "sharpness=-1": lambda: table_bound(-1, 4),
}


def test_what_is_impossible_is_refused():
    for says, refused in IMPOSSIBLE.items():
        with pytest.raises(UserError, match=says):
            refused()
