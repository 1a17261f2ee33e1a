"""Convolutions as attention with rotary positions, within the bound, and over patches, against the convolution."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.theorem.bounds import output_bound
from attn_cnn_jax.theorem.kernels import over_patches
from attn_cnn_jax.theorem.rank import heads_needed
from attn_cnn_jax.theorem.rope import rope_bound, rope_sharpness
from attn_cnn_jax.theorem.to_attention import conv_to_attention
from tests.support.convolutions import apply, convolution

pytestmark = pytest.mark.usefixtures("float64")
ROUNDING = 1e-9


def mass_by_sums(beta, sizes, pairs):
    """Largest attention on other pixels than the one at the centre: all centres of an axis, no symmetry, no bound."""
    share = 1.0
    for size in sizes:
        keys, frequency = np.arange(size), math.pi / size * np.arange(1, pairs + 1)
        scores = beta * np.cos(frequency[:, None, None] * (keys[None, None] - keys[None, :, None])).sum(axis=0)
        share *= np.min(1 / np.exp(scores - beta * pairs).sum(axis=1))
    return 1 - share


def test_the_bound_of_rope_against_sums_and_the_numbers_of_the_documentation():
    for size in (3, 8, 16, 32):
        for pairs in (1, 2, 4, 8):
            for tolerance in (0.1, 1e-2, 1e-4, 1e-8):
                beta = rope_sharpness(tolerance, (size, size + 2), pairs)
                mass = mass_by_sums(beta, (size, size + 2), pairs)
                assert mass * (1 - 1e-12) - 1e-15 <= rope_bound(beta, (size, size + 2), pairs) <= tolerance
                assert mass >= tolerance / (1.3 if pairs <= size / 2 else 2)
    closed = lambda size, pairs: math.log(4e4) / sum(1 - math.cos(math.pi / size * n) for n in range(1, pairs + 1))  # noqa: E731
    for (size, pairs), beta in {
        (8, 1): 139,
        (16, 1): 551,
        (32, 1): 2201,
        (16, 2): 111,
        (16, 4): 19,
        (16, 8): 3.1,
    }.items():
        assert closed(size, pairs) == pytest.approx(beta, abs=0.5 if beta > 10 else 0.05)
        assert 0.9999e-4 < mass_by_sums(closed(size, pairs), (size, size), pairs) <= 1e-4
    assert mass_by_sums(closed(8, 8), (8, 8), 8) > 6e-4  # beyond N / 2 frequencies the form in one line breaks


@pytest.mark.parametrize(
    ("size", "pairs", "options"), [((3, 3), 2, {"stride": 2}), ((2, 3), 4, {"dilation": 2}), ((5,), 1, {})]
)
def test_rope_is_the_convolution_within_the_bound(size, pairs, options):
    rng = np.random.default_rng(0)
    kernel, image = rng.normal(size=(*size, 2, 3)), (7, 6)[: len(size)]
    x = jnp.asarray(rng.normal(size=(2, *image, 2)))
    expected = convolution(x, kernel, **options)
    grid = image if len(image) == 2 else (1, *image)
    for beta in (3.0, 40.0, math.inf):
        layer = conv_to_attention(kernel, encoding="rope", pairs=pairs, grid=grid, sharpness=beta, **options)
        assert layer.attention.num_heads == math.prod(size)
        padded = tuple(n + sum(p) for n, p in zip(grid, layer.pads(grid), strict=True))
        bound = output_bound(kernel, x, mass=0.0 if beta == math.inf else rope_bound(beta, padded, pairs))
        assert (np.abs(apply(layer, x) - expected) <= bound + ROUNDING).all()
    smaller = x[:, :5]  # any image up to the size
    np.testing.assert_allclose(apply(layer, smaller), convolution(smaller, kernel, **options), atol=ROUNDING)


@pytest.mark.parametrize(
    ("kernel_size", "patch", "dilation"),
    [((3, 3), 2, 1), ((5, 3), 2, 1), ((3, 3), 4, 1), ((3, 3), 2, 2), ((2, 4), 3, 1), ((2, 4), 2, 2), ((4, 2), 3, 3)],
)
def test_patches_are_the_convolution(kernel_size, patch, dilation):
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(*kernel_size, 2, 3)), rng.normal(size=3)
    x = jnp.asarray(rng.normal(size=(1, 3 * patch, 4 * patch, 2)))

    def patches(x):
        split = x.reshape(1, 3, patch, 4, patch, -1)
        return split.transpose(0, 1, 3, 2, 4, 5).reshape(1, 3, 4, -1)

    expected = patches(convolution(x, kernel, dilation=dilation) + bias.reshape(1, 1, 1, -1))
    layer = conv_to_attention(kernel, bias, patch=patch, dilation=dilation)
    np.testing.assert_allclose(apply(layer, patches(x)), expected, atol=ROUNDING)
    if all(size % 2 for size in kernel_size):
        neighbours = [2 * math.ceil(dilation * (size - 1) / (2 * patch)) + 1 for size in kernel_size]
        assert layer.attention.num_heads == math.prod(neighbours)


def test_blocks_of_patches_have_the_ranks_of_borders_and_corners():
    """Of a 3x3 convolution nine heads, whatever the patch; four of them small, four of them very small."""
    kernel, patch, channels = np.random.default_rng(0).normal(size=(3, 3, 2, 2)), 4, 2
    blocks = over_patches(kernel, patch)
    assert blocks.shape[:2] == (3, 3)
    rank = np.linalg.matrix_rank(blocks)
    assert rank[1, 1] == patch**2 * channels
    assert (rank[[0, 1, 1, 2], [1, 0, 2, 1]] == patch * channels).all()
    assert (rank[::2, ::2] == channels).all()
    assert heads_needed(blocks).enough == 9
    assert np.linalg.matrix_rank(over_patches(np.ones((5, 5, 2, 2)) * kernel[1:2, 1:2], 4)[0, 0]) <= 2 * 2 * channels


IMPOSSIBLE = {
    "encoding='rope'": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), encoding="rope"),
    "encoding='pape'": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), encoding="pape"),
    "pairs=0": lambda: rope_bound(1.0, (3, 3), 0),
    "stride 1": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), patch=2, stride=2),
    "patch=2": lambda: conv_to_attention(np.ones((3, 1, 1)), patch=2),
    r"grid=\(0, 8\)": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), encoding="rope", grid=(0, 8)),
    "grid= allows up to 10x10": lambda: conv_to_attention(np.ones((3, 3, 1, 1)), encoding="rope", grid=(8, 8))(
        jnp.zeros((1, 8, 9, 1))
    ),
}


def test_what_is_impossible_is_refused():
    for says, refused in IMPOSSIBLE.items():
        with pytest.raises(UserError, match=says):
            refused()
