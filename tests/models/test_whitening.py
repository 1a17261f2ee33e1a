"""The embedding that whitens: covariance and mean of what it gives, and that training begins with it."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.data.sources import Split
from attn_cnn_jax.models.classifier import space_to_depth
from attn_cnn_jax.models.whitening import RIDGE, whitening
from attn_cnn_jax.training import start


def patches(count=4000, features=12):
    generator = np.random.default_rng(0)
    mixed = generator.normal(size=(features, features)) * np.geomspace(1, 0.05, features)
    return (generator.normal(size=(count, features)) @ mixed.T + 3).astype(np.float32)


@pytest.mark.parametrize("outputs", [5, 12, 20])
def test_what_it_gives_is_uncorrelated_with_mean_zero(outputs):
    x, kernel = patches(), np.random.default_rng(1).normal(size=(12, outputs)).astype(np.float32)
    weight, bias = whitening(kernel, x)
    y = (x @ weight + bias).astype(np.float64)
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-3)
    variances = np.linalg.eigvalsh(np.cov(x, rowvar=False))
    # Every direction keeps the share v / (v + ridge) of variance 1.
    kept = variances / (variances + RIDGE * variances.mean())
    found = np.linalg.eigvalsh(np.cov(y, rowvar=False))
    if outputs >= 12:
        np.testing.assert_allclose(found[-12:], np.sort(kept), rtol=1e-3)
        np.testing.assert_allclose(found[:-12], 0, atol=1e-6)  # more channels than values: their images lie in a plane
    else:
        assert (found <= kept.max() + 1e-3).all()
        assert (found >= kept.min() - 1e-3).all()


def test_patches_of_one_value_get_variance_one():
    values = np.arange(5.0)[:, None]
    weight, bias = whitening(np.ones((1, 1)), values)
    given = values @ weight + bias
    np.testing.assert_allclose((given.mean(), given.var(ddof=1)), (0, 1 / (1 + RIDGE)), atol=1e-12)


def test_a_large_share_is_whitened_to_the_identity():
    x = patches()[:, :4]  # no direction is nearly constant
    weight, bias = whitening(np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32), x)
    np.testing.assert_allclose(np.cov(x @ weight + bias, rowvar=False), np.eye(4), atol=0.15)


def test_a_new_network_begins_with_it():
    config = attention_config(image_shape=(8, 8, 3), hidden_size=16, num_layers=1, num_heads=4)
    model = create_model(config.model, rngs=nnx.Rngs(0))
    spec, generator = SPECS["cifar10"], np.random.default_rng(0)
    smooth = generator.integers(0, 256, (200, 4, 4, 3)).repeat(2, axis=1).repeat(2, axis=2)
    images = np.clip(smooth + generator.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)
    start.whiten(model, Split(images, np.zeros(200, np.int32)), spec)
    pixels = (images / 255.0 - np.array(spec.mean)) / np.array(spec.std)
    x = space_to_depth(jnp.asarray(pixels, jnp.float32), 2).reshape(-1, 12)
    embedded = model.embedding(x)
    covariance = np.cov(np.asarray(embedded, np.float64), rowvar=False)
    values = np.linalg.eigvalsh(np.cov(x, rowvar=False))
    assert np.linalg.cond(np.cov(x, rowvar=False)) > 50
    expected = np.sort(values / (values + RIDGE * values.mean()))
    chex.assert_trees_all_close(np.linalg.eigvalsh(covariance)[-12:], expected, rtol=1e-3)
