"""The loops in NumPy are what the paper says: cases worked out by hand, and identities of the theory."""

import math

import numpy as np
import pytest

from tests.support import numpy_attention as loops


def test_spread_and_centre_by_hand():
    # Query (1, 1), key (3, 0): delta (2, -1), from the centre (1, 1) by (1, -2): |.|^2 = 5, alpha = 2.
    assert loops.quadratic_score((1, 1), (3, 0), centre=(1.0, 1.0), spread=2.0) == -10.0
    # S^T (1, -2) with S = [[1, 2], [3, 4]] is (1 - 6, 2 - 8) = (-5, -6): -61 / 2.
    spread = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert loops.generalized_quadratic_score((1, 1), (3, 0), centre=(1.0, 1.0), spread=spread) == -30.5


def test_sinusoidal_positions_by_hand():
    expected = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    expected += [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]
    np.testing.assert_allclose(loops.sinusoidal_positions(2, 3, 8)[1, 2], expected, rtol=1e-15)


def test_quadratic_encoding_is_a_case_of_the_relative_form():
    # Eq. 9 differs from -alpha |delta - Delta|^2 by alpha |Delta|^2, the same for every key.
    centre, spread = np.array([0.7, -1.3]), 1.4
    alpha = spread**2 / 2
    zeros = np.zeros((5, 3))
    for key in np.ndindex(4, 4):
        d = np.array(loops.shift((1, 2), key))
        score = loops.relative_score(
            np.ones(5),
            np.ones(5),
            r_delta=np.array([d @ d, *d]),
            query_weights=zeros,
            key_weights=zeros,
            position_weights=np.eye(3),
            u=np.zeros(3),
            v=-alpha * np.array([1, -2 * centre[0], -2 * centre[1]]),
            scale=1.0,
        )
        expected = loops.quadratic_score((1, 2), key, centre, spread) + alpha * centre @ centre
        assert score == pytest.approx(expected, abs=1e-12)


def test_heads_on_a_grid_are_a_convolution():
    # Theorem 1: nine sharp heads on a picture padded with zeros, cropped, are a 3x3 convolution.
    rng = np.random.default_rng(0)
    picture, kernel, bias = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 3, 2, 4)), rng.normal(size=4)
    centres = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]
    padded = np.pad(picture, ((1, 1), (1, 1), (0, 0)))

    def score(head, query, key):
        return loops.quadratic_score(query, key, centres[head], spread=math.sqrt(2 * 50))

    probabilities = loops.softmax_over_keys(loops.scores_of_image(score, 9, *padded.shape[:2]))
    output = loops.mhsa(probabilities, padded, kernel.reshape(9, 2, 4), bias)[1:-1, 1:-1]
    np.testing.assert_allclose(output, loops.conv2d(picture, kernel, bias), rtol=0, atol=1e-12)
