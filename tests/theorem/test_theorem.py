"""Theorem 1: attention built from a convolution has its output, within the bound stated for a finite alpha.

A whole trained ResNet is converted in notebooks/theorem.ipynb, which tests execute.
"""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.convolutional import ConvolutionalAttention
from attn_cnn_jax.models.initialisation import truncate
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.theorem.bounds import alpha_exact, attention_bound, output_bound, sharpness_for
from attn_cnn_jax.theorem.to_attention import conv_to_attention, convolutions_to_attention, layer_to_attention
from tests.support.convolutions import apply, convolution

pytestmark = pytest.mark.usefixtures("float64")

# Sums of at most a few hundred products of numbers near one, in another order.
ROUNDING = 1e-11


@st.composite
def convolutions(draw):
    """Shapes, strides, dilations and paddings for which the output has at least one pixel."""
    num_axes = draw(st.sampled_from([1, 2]))
    axes = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(num_axes))  # noqa: E731
    kernel_size, stride, dilation = axes(1, 4), axes(1, 3), axes(1, 2)
    window = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
    padding = draw(st.sampled_from(["SAME", "VALID", "explicit"]))
    if padding == "explicit":
        padding = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(num_axes))
    size = tuple(w + draw(st.integers(0, 4)) for w in window)
    in_features, out_features = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return {
        "kernel": rng.normal(size=(*kernel_size, in_features, out_features)),
        "bias": rng.normal(size=out_features),
        "x": jnp.asarray(rng.normal(size=(2, *size, in_features))),
        "options": {"stride": stride, "dilation": dilation, "padding": padding},
    }


@pytest.mark.as_users
@settings(max_examples=16, deadline=None, derandomize=True)
@given(convolutions(), st.floats(0.1, 12))
def test_attention_is_the_convolution_within_the_bound_of_its_sharpness(case, alpha):
    expected = convolution(case["x"], case["kernel"], **case["options"]) + case["bias"]
    for sharpness in (math.inf, alpha):
        actual = apply(
            conv_to_attention(case["kernel"], case["bias"], sharpness=sharpness, **case["options"]), case["x"]
        )
        bound = output_bound(case["kernel"], case["x"], sharpness)
        assert actual.dtype == jnp.float64
        assert (np.abs(actual - expected) <= bound + ROUNDING).all()  # 0 for infinite sharpness


def test_attention_bound_against_the_sum_over_a_large_grid():
    n = np.arange(-60, 61)
    for alpha in (0.05, 0.3, 1.0, 3.0, 30.0):
        others = np.exp(-alpha * n[n != 0] ** 2.0).sum()
        for num_axes in (1, 2):
            mass = -math.expm1(-num_axes * math.log1p(others))
            assert mass <= attention_bound(alpha, num_axes) <= 1
            if alpha >= 1:
                assert attention_bound(alpha, num_axes) < 1.002 * mass
    assert attention_bound(math.inf) == 0
    # Of an input that is one everywhere, too: heads look at the padding's zeros.
    np.testing.assert_allclose(
        output_bound(np.ones((3, 3, 1, 1)), np.ones((5, 5, 1)), 1.0), 9 * attention_bound(1.0, 2)
    )
    # Of two groups, each output sees the range of its own channel.
    x = np.array([1.0, 5.0]) * np.ones((5, 5, 2))
    bound = output_bound(np.ones((3, 3, 1, 2)), x, 1.0, groups=2)
    np.testing.assert_allclose(bound, [9 * attention_bound(1.0, 2), 45 * attention_bound(1.0, 2)])


@given(st.floats(1e-14, 0.99), st.sampled_from([1, 2]))
def test_sharpness_for_is_the_smallest(tolerance, num_axes):
    alpha = sharpness_for(tolerance, num_axes)
    assert attention_bound(alpha, num_axes) <= tolerance
    assert attention_bound(alpha * (1 - 1e-9), num_axes) > tolerance * (1 - 1e-15)


@pytest.mark.as_users
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_from_alpha_exact_on_attention_is_hard(dtype):
    """The centre's probability is exactly 1, whichever pixel is the centre and in whatever order keys are added up."""

    def at_the_centre(alpha, centre, largest_first=False):
        scores = -alpha * ((np.indices((9, 9)) - np.reshape(centre, (2, 1, 1))) ** 2).sum(axis=0)
        total, terms = jnp.zeros((), dtype), jnp.exp(jnp.asarray(scores, dtype)).ravel()
        for term in sorted(terms.tolist(), reverse=largest_first):
            total += jnp.asarray(term, dtype)
        return float(jnp.ones((), dtype) / total)

    alpha = alpha_exact(dtype)
    for largest_first in (False, True):
        for centre in ((4, 4), (0, 0), (8, 3)):
            assert at_the_centre(alpha, centre, largest_first) == 1
    assert at_the_centre(alpha - 1.5, (4, 4)) < 1
    others = attention_bound(alpha)  # less a quarter of the distance to the next number, as a part of the centre
    assert others / (1 - others) == pytest.approx(float(jnp.finfo(dtype).eps) / 4, rel=1e-9)
    if dtype == "float32":  # far below the paper's 46
        assert alpha == pytest.approx(math.log(4) + 25 * math.log(2), abs=1e-4)


@pytest.mark.as_users
def test_the_layer_is_self_attention_on_the_padded_picture_cropped():
    """Theorem 1 word by word: pad, apply multi-head self-attention, crop, subsample."""
    rng = np.random.default_rng(0)
    layer = conv_to_attention(rng.normal(size=(3, 3, 4, 5)), rng.normal(size=5), stride=(2, 1), sharpness=3.0)
    x = jnp.asarray(rng.normal(size=(2, 7, 6, 4)))
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    np.testing.assert_allclose(apply(layer, x), apply(layer.attention, padded)[:, 1:-1:2, 1:-1], atol=1e-12)
    whole = layer.attention.probabilities(padded).reshape(9, 9, 8, 9, 8)
    for head, (row, column) in enumerate(np.ndindex(3, 3)):
        mass_elsewhere = 1 - whole[head, 4, 4, 3 + row, 3 + column]
        assert 0 < mass_elsewhere <= attention_bound(3.0)


def test_small_heads_lose_the_discarded_singular_values():
    """The layer is the convolution with the truncated slices, whose errors are the singular values left out."""
    head_dim, rng = 2, np.random.default_rng(0)
    kernel, x = rng.normal(size=(2, 3, 5, 4)), jnp.asarray(rng.normal(size=(1, 4, 5, 5)))
    low_rank = truncate(kernel, head_dim)
    of_maps = low_rank.value @ low_rank.output
    difference = kernel.reshape(6, 5, 4) - of_maps
    assert low_rank.discarded.shape == (6, 4 - head_dim)
    spectral, frobenius = (np.linalg.norm(difference, ord=kind, axis=(1, 2)) for kind in (2, "fro"))
    np.testing.assert_allclose(spectral, low_rank.discarded[:, 0], rtol=1e-10)
    np.testing.assert_allclose(frobenius, np.sqrt(np.sum(low_rank.discarded**2, axis=1)), rtol=1e-10)
    expected = convolution(x, of_maps.reshape(kernel.shape))
    np.testing.assert_allclose(apply(conv_to_attention(kernel, head_dim=head_dim), x), expected, atol=ROUNDING)


@pytest.mark.parametrize(
    ("kernel_size", "options"),
    [
        ((3, 3), {"padding": "SAME", "strides": 2}),
        ((3, 2), {"padding": 1, "kernel_dilation": (2, 1)}),
        ((3,), {"padding": [(2, 0)]}),
        ((5,), {"padding": "VALID", "strides": (2,), "use_bias": False}),
        ((3, 3), {"mask": np.arange(108.0).reshape(3, 3, 3, 4) % 5}),
    ],
)
def test_flax_layers(kernel_size, options):
    layer = nnx.Conv(3, 4, kernel_size, **options, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, *(8, 7)[: len(kernel_size)], 3), jnp.float64)
    attention = layer_to_attention(layer)
    np.testing.assert_allclose(apply(attention, x), apply(layer, x), atol=ROUNDING)
    np.testing.assert_allclose(apply(attention, x[0]), apply(layer, x[0]), atol=ROUNDING)  # one image, without a batch


def test_a_layer_of_sixteen_bits():
    sixteen = nnx.Conv(2, 4, (3, 3), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    layer, x = layer_to_attention(sixteen), jax.random.normal(jax.random.key(1), (1, 5, 6, 2), jnp.float32)
    assert layer.attention.output.kernel.dtype == jnp.float32
    found, expected = apply(layer, x), apply(sixteen, x)
    assert found.dtype == jnp.bfloat16
    chex.assert_trees_all_close(found.astype(jnp.float32), expected.astype(jnp.float32), atol=0.05)


class Shares(nnx.Module):
    """One convolution in four places, one in containers, and two that share a kernel alone."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        conv = lambda: nnx.Conv(2, 2, (3, 3), param_dtype=jnp.float64, rngs=rngs)  # noqa: E731
        self.first = self.again = conv()
        self.listed = nnx.List([self.first, conv()])
        self.tuple, self.named = nnx.data((self.first, jnp.ones(2))), nnx.data({"a": [conv()]})
        self.tied = conv()
        self.tied.kernel = self.first.kernel

    def __call__(self, x):
        layers = self.first, self.again, *self.listed, self.tuple[0], self.named["a"][0], self.tied
        for layer in layers:
            x = layer(x)
        return x


def test_what_is_shared_in_a_network_stays_shared():
    network, x = Shares(), jax.random.normal(jax.random.key(1), (1, 5, 4, 2), jnp.float64)
    attention = convolutions_to_attention(network)
    assert not any(isinstance(module, nnx.Conv) for _, module in nnx.iter_modules(attention))
    np.testing.assert_allclose(apply(attention, x), apply(network, x), rtol=1e-10, atol=ROUNDING)
    assert attention.first is attention.again is attention.listed[0] is attention.tuple[0]
    assert attention.tied.attention.output.kernel is attention.first.attention.output.kernel
    kernels = [name for name in split(attention)[1] if name.endswith("output.kernel")]
    assert len(kernels) == 3  # as many as the network has
    assert isinstance(convolutions_to_attention(network.first), ConvolutionalAttention)
    np.testing.assert_allclose(
        apply(convolutions_to_attention(network.first), x), apply(network.first, x), atol=ROUNDING
    )


class Standardised(nnx.Conv):
    """A convolution that computes something else than its class."""

    def __call__(self, inputs):
        return 2 * super().__call__(inputs)


KERNEL = np.ones((3, 3, 2, 2))
IMPOSSIBLE = {  # what is said: who says it
    "a kernel of shape": lambda: conv_to_attention(np.ones((3, 3))),
    "allowed are finite ones": lambda: conv_to_attention(np.full((3, 3, 1, 1), np.nan)),
    r"\(4, 4, 3\): this kernel reads 2 channels": lambda: output_bound(np.ones((3, 3, 2, 2)), np.ones((4, 4, 3)), 1.0),
    "float32 or float64": lambda: conv_to_attention(KERNEL.astype(int)),
    r"needs \(2,\)": lambda: conv_to_attention(KERNEL, np.ones(3)),
    "stride=0": lambda: conv_to_attention(KERNEL, stride=0),
    "or 2 of them": lambda: conv_to_attention(KERNEL, dilation=(1, 1, 1)),
    "padding='CIRCULAR'": lambda: conv_to_attention(KERNEL, padding="CIRCULAR"),
    "padding=-1": lambda: conv_to_attention(KERNEL, padding=-1),
    "head_dim=0": lambda: conv_to_attention(KERNEL, head_dim=0),
    "sharpness=0": lambda: conv_to_attention(KERNEL, sharpness=0),
    "sharpness=nan": lambda: conv_to_attention(KERNEL, sharpness=math.nan),
    r"sharpness=1e\+308": lambda: conv_to_attention(KERNEL, sharpness=1e308),
    r"up to 8\.5e\+37": lambda: conv_to_attention(KERNEL.astype(np.float32), sharpness=1e38),
    "a larger one": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), padding="VALID")(jnp.zeros((1, 2, 5, 1))),
    "input dilation": lambda: layer_to_attention(nnx.Conv(1, 1, (3, 3), input_dilation=2, rngs=nnx.Rngs(0))),
    "a Standardised": lambda: convolutions_to_attention(Standardised(1, 1, (3, 3), rngs=nnx.Rngs(0))),
    "tolerance=0": lambda: sharpness_for(0),
    "tolerance=nan": lambda: sharpness_for(math.nan),
    "alpha": lambda: attention_bound(0),
}


def test_what_is_no_convolution_is_refused():
    for says, refused in IMPOSSIBLE.items():
        with pytest.raises(UserError, match=says):
            refused()
