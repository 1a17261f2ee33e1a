"""Moments of attention against closed forms: Gaussians and one pixel; tests/analysis/test_heads.py has naive sums."""

import math

import numpy as np
import pytest

from attn_cnn_jax.models.attention import moments

HEIGHT, WIDTH = 41, 37


def gaussian(centre, covariance):
    """A Gaussian sampled at the pixels and normalised; far from the border its moments are its parameters."""
    rows, columns = np.meshgrid(np.arange(HEIGHT), np.arange(WIDTH), indexing="ij")
    delta = np.stack([rows - centre[0], columns - centre[1]], axis=-1)
    density = np.exp(-0.5 * np.einsum("kla,ab,klb->kl", delta, np.linalg.inv(covariance), delta))
    return density / density.sum()


COVARIANCE = np.array([[4.0, 1.5], [1.5, 2.0]])


def test_moments_of_a_gaussian_are_its_parameters():
    attention = gaussian((19.3, 17.8), COVARIANCE)
    np.testing.assert_allclose(moments.centre_of_mass(attention), (19.3, 17.8), atol=1e-6)
    np.testing.assert_allclose(moments.covariance(attention), COVARIANCE, atol=1e-5)
    # differential entropy of a Gaussian; pixels of unit area
    expected = 0.5 * math.log((2 * math.pi * math.e) ** 2 * np.linalg.det(COVARIANCE))
    assert moments.entropy(attention) == pytest.approx(expected, abs=1e-5)


def test_main_axes_of_a_rotated_ellipse_and_the_covariance_of_a_spread():
    angle = math.radians(30)
    direction = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-direction[1], direction[0]])
    deviations, axis = moments.main_axes(9 * np.outer(direction, direction) + 0.25 * np.outer(across, across))
    np.testing.assert_allclose(deviations, (3, 0.5))
    assert abs(axis @ direction) == pytest.approx(1)
    spread = np.array([[[0.5, 0.3], [0.1, 2.0]], [[1.0, 2.0], [2.0, 4.0]]])
    found = moments.covariance_of_spread(spread)
    np.testing.assert_allclose(found[0], np.linalg.inv(spread[0] @ spread[0].T))
    assert np.isinf(found[1]).all()
    np.testing.assert_allclose(moments.covariance_of_spread(np.array([0.5])), [4 * np.eye(2)])


def test_one_pixel_attention_has_no_spread_and_no_entropy():
    attention = np.zeros((HEIGHT, WIDTH))
    attention[3, 30] = 1
    np.testing.assert_array_equal(moments.covariance(attention), np.zeros((2, 2)))
    assert moments.entropy(attention) == 0
    assert moments.mass_at_centre(attention) == 1
    # Rounding of float32 leaves no trace.
    rounded = attention.astype(np.float32) * np.float32(1 - 1e-6)
    np.testing.assert_array_equal(moments.centre_of_mass(rounded), (3, 30))
