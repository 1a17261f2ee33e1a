"""Networks of Flax NNX that write attention in orders of axes and types of their own."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.instrument.inspect import inspect


@pytest.fixture
def random():
    return np.random.default_rng(0)


class Ordered(nnx.Module):
    """One layer over 8x8 patches whose axes are in an order of its own, of `product`: weights, values to averages."""

    def __init__(self, product):
        rngs = nnx.Rngs(0)
        self.patches = nnx.Conv(3, 16, (2, 2), (2, 2), rngs=rngs)
        self.queries, self.keys = nnx.Linear(16, 16, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)
        self.output, self.product = nnx.Linear(16, 4, rngs=rngs), product

    def weights(self, x):
        """By query and key, `(b, n, 2, 2, n)`: two groups of two heads each, queries first."""
        x = self.patches(x).reshape(len(x), -1, 16)
        if self.product.startswith("bw"):  # windows of 4x4, one group of two heads in each
            x = x.reshape(len(x), 2, 4, 2, 4, 16).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, 16)
        query, key = self.queries(x).reshape(*x.shape[:2], 2, 2, 4), self.keys(x).reshape(*x.shape[:2], 2, 2, 4)
        return nnx.softmax(jnp.einsum("bqkgc,bskgc->bqkgs", query, key), axis=-1), x

    def __call__(self, x):
        weights, values = self.weights(x)
        values = values[..., :8].reshape(len(values), -1, 2, 4)  # (b, s, k, c)
        if self.product.startswith("bw"):
            weights = weights[:, :, :, 0].reshape(-1, 4, 16, 2, 16).transpose(0, 1, 3, 2, 4)  # (b, w, k, q, s)
            values = values.reshape(-1, 4, *values.shape[1:])
        if self.product.startswith("qkgsb"):
            weights = jnp.moveaxis(weights, 0, -1)
        averages = jnp.einsum(self.product, weights, values)
        averages = averages.reshape(len(x), 64, -1)
        return self.output(jnp.concatenate([averages] * (16 // averages.shape[-1]), axis=-1)).mean(axis=1)


@pytest.mark.parametrize("product", ["bqkgs,bskc->bqkgc", "bwkqs,bwskc->bwqkc", "qkgsb,bskc->bqkgc"])
def test_nnx_networks_have_axes_in_any_order(product, random):
    """Queries before the groups that share keys, as Gemma has them; windows in an axis of their own; images last."""
    model, x = Ordered(product), random.normal(size=(3, 16, 16, 3)).astype(np.float32)
    report = inspect(model, x)
    weights = np.asarray(model.weights(x)[0])
    windows = product.startswith("bw")
    weights = weights[:, :, :, :1] if windows else weights
    expected = weights.transpose(0, 2, 3, 1, 4).reshape(len(weights), -1, *weights.shape[1::3])
    np.testing.assert_allclose(report.attention[0], expected, atol=1e-6)
    assert max(report.differences) < 1e-5
    if product.startswith("bq"):
        (row,) = report.curve([3])
        own, replaced = model(x), report.replaced_network(3)(x)
        assert row["logits"] == pytest.approx(float(abs(replaced - own).max() / abs(own).max()), rel=1e-4, abs=1e-5)


@pytest.mark.usefixtures("self_check", "promotion")
def test_networks_that_compute_in_bfloat16_are_allowed_its_rounding(random):
    """By the type of activations or of the output, with parameters in float32."""

    class Mixed(nnx.Module):
        def __init__(self, dtype, output):
            rngs = nnx.Rngs(0)
            self.output = output
            self.patches = nnx.Conv(3, 8, (4, 4), (4, 4), dtype=dtype, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 8, dtype=dtype, rngs=rngs, decode=False)

        def __call__(self, x):
            x = self.patches(x).reshape(len(x), 16, 8)
            return (x + self.attention(x)).mean(axis=1).astype(self.output)

    images = random.normal(size=(2, 16, 16, 3)).astype(np.float32)
    for dtype, output in (("bfloat16", "float32"), ("float32", "bfloat16")):
        assert inspect(Mixed(dtype, output), images).grid == (4, 4)
