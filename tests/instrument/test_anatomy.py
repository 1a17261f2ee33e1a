"""Shares of attention that shift, place and image explain: planted heads of each kind, and mixtures."""

import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.instrument.anatomy import anatomy, by_place
from attn_cnn_jax.theorem.to_attention import conv_to_attention

GRID = 5, 6
PIXELS = 30


@pytest.fixture
def planted(np_random):
    """Attention of relative, absolute and content heads, `(24, 1, q, p)` each."""
    places = by_place(np.exp(np_random.normal(size=(1, 9, 11))), GRID)
    absolute = np_random.dirichlet(np.full(PIXELS, 0.1), size=(1, PIXELS))
    content = np_random.dirichlet(np.full(PIXELS, 0.1), size=(24, 1, PIXELS))
    return {
        "relative": np.repeat(places[None], 24, axis=0),
        "absolute": np.repeat(absolute[None], 24, axis=0),
        "content": content,
    }


@pytest.fixture
def np_random():
    return np.random.default_rng(0)


def test_a_convolution_by_theorem_1_is_relative_at_borders_too(np_random):
    layer = conv_to_attention(np_random.normal(size=(3, 3, 2, 2)).astype(np.float32), sharpness=1.0)
    attention = np.asarray(layer.attention.probabilities(jnp.zeros((1, *GRID, 2))), np.float64)
    shares = anatomy(attention.reshape(1, 9, PIXELS, PIXELS), GRID).shares
    assert shares == pytest.approx(np.tile([1.0, 0, 0], (9, 1)), abs=1e-5)


def test_place_and_image_are_told_apart(planted):
    absolute, content = (anatomy(planted[kind], GRID).shares[0] for kind in ("absolute", "content"))
    assert absolute[2] == 0
    assert absolute[1] > 0.8  # the rest is what a pattern by shift has in common with this one by chance
    assert content[2] > 0.98


def test_shares_of_a_mixture_are_those_of_its_variances(planted):
    """Of `w relative + (1 - w) content` both variances are known."""
    weight, noise = 0.6, planted["content"] - planted["content"].mean(axis=0)
    mixture = weight * planted["relative"] + (1 - weight) * (noise + 1 / PIXELS)
    relative = weight**2 * np.square(planted["relative"][0] - 1 / PIXELS).sum()
    content = (1 - weight) ** 2 * np.square(noise).sum() / 24
    shares = anatomy(mixture, GRID).shares[0]
    # Nearly: the likeliest r of a mixture with uniform attention is not quite that of the attention.
    assert shares[0] == pytest.approx(relative / (relative + content), abs=5e-3)
    assert shares[2] == pytest.approx(content / (relative + content), abs=5e-3)
    assert shares.sum() == pytest.approx(1, abs=1e-12)


def test_few_images_are_corrected_and_their_error_is_stated(np_random):
    """Means over many draws of 4 images agree with the shares from 2,000 images within the errors stated."""
    places = by_place(np.exp(np_random.normal(size=(1, 5, 5))), (3, 3))
    absolute = np_random.dirichlet(np.full(9, 0.3), size=(1, 9))

    def draw(count):
        content = np_random.dirichlet(np.full(9, 0.3), size=(count, 1, 9))
        return 0.4 * places + 0.3 * absolute + 0.3 * content

    many = anatomy(draw(2000), (3, 3)).shares[0]
    few = [anatomy(draw(4), (3, 3)) for _ in range(200)]
    shares = np.stack([each.shares[0] for each in few])
    np.testing.assert_allclose(shares.mean(axis=0), many, atol=0.02)
    stated = np.sqrt(np.mean([np.square(each.errors[0, 2]) for each in few]))
    assert 0.5 < stated / shares[:, 2].std() < 2


def test_uniform_attention_has_no_anatomy():
    assert (anatomy(np.full((2, 1, PIXELS, PIXELS), 1 / PIXELS), GRID).shares == 0).all()
