"""Lemma 3: residuals against their definition, cases with a known answer, layers that are convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import Learned, Quadratic
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.theorem import learning, span
from attn_cnn_jax.theorem.to_attention import conv_to_attention
from attn_cnn_jax.theorem.to_convolution import position_attention
from tests.support.convolutions import apply

SHIFTS = kernel_shifts((3, 3))
INNER = [(i, j) for i in range(3, 7) for j in range(3, 6)]


def random_attention(heads, height, width, seed=0):
    attention = np.random.default_rng(seed).random((heads, height, width, height, width))
    return attention / attention.sum(axis=(-2, -1), keepdims=True)


def test_residuals_are_the_distances_of_their_definition():
    """The smallest |A X - E| over all X, with A and E written entry by entry."""
    attention = random_attention(5, 4, 3)
    found = span.residuals(attention, SHIFTS)
    for n, (i, j) in enumerate(np.ndindex(4, 3)):
        expected = np.zeros((12, 9))
        for s, (row, column) in enumerate(SHIFTS):
            if 0 <= i + row < 4 and 0 <= j + column < 3:
                expected[3 * (i + row) + j + column, s] = 1
        maps = np.array([[attention[h, i, j, k, m] for h in range(5)] for k in range(4) for m in range(3)])
        solution = np.linalg.lstsq(maps, expected, rcond=None)[0]
        distance = np.linalg.norm(maps @ solution - expected) / np.linalg.norm(expected)
        assert found[n] == pytest.approx(distance)
        assert 0.1 < distance < 1
    np.testing.assert_array_equal(span.residuals(attention, SHIFTS, [(1, 2), (3, 0)]), found[[5, 9]])
    # Equal heads count once; heads as many as pixels span all; of an indicator a constant is 1 / sqrt(pixels).
    one = random_attention(1, 4, 3)
    np.testing.assert_allclose(span.residuals(np.repeat(one, 3, axis=0), SHIFTS), span.residuals(one, SHIFTS))
    np.testing.assert_allclose(span.residuals(random_attention(12, 4, 3), SHIFTS), 0, atol=1e-9)
    uniform = span.residuals(np.full((9, 4, 4, 4, 4), 1 / 16), SHIFTS, [(1, 1)])
    assert uniform[0] == pytest.approx(np.sqrt(1 - 1 / 16))


def test_the_condition_of_lemma_3_is_not_sufficient_away_from_the_border():
    """64 heads of a learned encoding over 8x8 pixels: each middle query is solvable, all together are not."""
    middle = [(i, j) for i in range(2, 6) for j in range(2, 6)]
    with jax.enable_x64(True):
        encoding = Learned(64, (8, 8), 16, dtype="float64", rngs=nnx.Rngs(0))
        layer = SelfAttention(encoding, num_heads=64, hidden_size=4, dtype="float64", rngs=nnx.Rngs(0))
        attention = np.asarray(position_attention(layer, (8, 8)))
    assert span.residuals(attention, SHIFTS, middle).max() < 1e-13
    solved = span.mixing(attention, SHIFTS, middle)
    assert 0.4 < solved.residual < 0.7


def test_nine_soft_heads_off_the_grid_are_every_convolution():
    """Lemma 3 at work: no head attends to one pixel, and value maps that mix the kernel's slices make up for it."""
    far = [(2 * row, 2 * column) for row, column in SHIFTS]  # wide Gaussians, whose sum over heads is still a basis
    layer = SelfAttention(Quadratic(18, rngs=nnx.Rngs(0)), num_heads=18, hidden_size=4, rngs=nnx.Rngs(0))
    layer.position.centre[...] = jnp.asarray([*SHIFTS * 0.7, *far], jnp.float32)
    layer.position.spread[...] = jnp.full(18, 1.3, jnp.float32)
    attention = np.asarray(position_attention(layer, (10, 9)))
    assert attention.max(axis=(-2, -1))[:, 4, 4].max() < 0.5
    solved = span.mixing(attention, SHIFTS, INNER)
    maps, expected = map(np.concatenate, span.systems(attention, SHIFTS, INNER))
    missed = maps @ solved.weights - expected
    np.testing.assert_allclose(maps.T @ missed, 0, atol=1e-6)  # normal equations
    # Below the residual of one X for all queries lies that of an X for each.
    assert np.mean(span.residuals(attention, SHIFTS, INNER)) <= solved.residual + 1e-9
    kernel = np.random.default_rng(1).normal(size=(3, 3, 4, 4)).astype(np.float32)
    values = span.value_maps(solved.weights, kernel)
    layer.output.kernel[...] = jnp.asarray(values.reshape(-1, 4), jnp.float32)
    layer.output.bias[...] = jnp.zeros(4)
    x = jax.random.normal(jax.random.key(0), (64, 10, 9, 4))
    expected = apply(conv_to_attention(kernel), x)
    difference = apply(layer, x) - expected
    rows, columns = np.array(INNER).T
    error = jnp.linalg.norm(difference[:, rows, columns]) / jnp.linalg.norm(expected[:, rows, columns])
    # On white noise the error of the output is the residual, weighted by the kernel's slices.
    assert float(error) == pytest.approx(solved.residual, rel=0.3)


def test_a_convolution_as_attention_mixes_nothing():
    """Lemma 1: head h has shift h for itself, so X is the identity and the value maps are the kernel's slices."""
    layer = conv_to_attention(np.ones((3, 3, 2, 2), np.float32), sharpness=30.0).attention
    attention = np.asarray(position_attention(layer, (10, 9)))
    solved = span.mixing(attention, SHIFTS, INNER)
    np.testing.assert_allclose(solved.weights, np.eye(9), atol=1e-6)
    assert solved.residual < 1e-6
    kernel = np.random.default_rng(2).normal(size=(3, 3, 2, 5))
    np.testing.assert_allclose(span.value_maps(np.eye(9), kernel), kernel.reshape(9, 2, 5))
    with pytest.raises(UserError, match="a kernel with 4 entries: these weights are for 9 shifts"):
        span.value_maps(np.eye(9), np.zeros((2, 2, 1, 1)))
    # Learning's error is zero for this layer.
    (skeleton, parameters, _), x = split(layer), learning.noise(jax.random.key(0), 4, 2)
    assert float(learning.relative_error(skeleton, parameters, jnp.ones((3, 3, 2, 2)), x)) < 1e-5
    attention = np.asarray(position_attention(layer, (6, 6)))
    # In the corner nine heads attend to four pixels: all that the shifts inside read.
    assert span.residuals(attention, SHIFTS, [(0, 0)])[0] < 1e-6
    # But one X for all queries is wrong there, because softmax has no zeros to read.
    assert span.mixing(attention, SHIFTS).residual > 0.1


def test_attention_learns_a_convolution_the_same_every_time():
    kernel = learning.random_kernel(0, channels=2)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam promotes its step number
        first, again = (learning.learn_convolution(kernel, 4, seed=1, num_steps=200) for _ in range(2))
    assert first.final_error == again.final_error < 0.8 * first.error[0]
    assert first.centre.shape == (learning.RECORDS + 1, 4, 2)
    np.testing.assert_array_equal(first.centre[-1], first.layer.position.centre[...])
    expected = Quadratic(4, rngs=nnx.Rngs(1))  # the paper's initial values
    np.testing.assert_array_equal(first.centre[0], expected.centre[...])
    assert np.abs(first.centre[-1] - first.centre[0]).max() > 0.01


def test_images_are_drawn_apart_from_the_students_start():
    """Numbers of one key and of one number folded in are in the same order, whatever is made of them."""
    start = Quadratic(4, rngs=nnx.Rngs(1)).centre[...].ravel()
    for number in range(10):
        image = learning.noise(jax.random.fold_in(learning.image_key(1), number), 2, 8).ravel()
        assert np.any(np.argsort(start) != np.argsort(image[: len(start)]))
