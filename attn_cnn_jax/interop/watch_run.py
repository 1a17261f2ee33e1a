"""Attention of this package's own networks, from their layers' probabilities and maps."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.watch import Product, Replace, Watched, product
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.runs.run import Run


def watch(run: Run, images: Any, replace: Replace | None = None) -> Watched:
    """Runs a copy of a run's network on `(b, H, W, C)` uint8 images; see `instrument.networks.watch`."""
    if not isinstance(run.model, AttentionClassifier):
        raise UserError(f"a {run.config.model.name} has no attention to look at")
    model, layers = nnx.clone(run.model), list[Product]()
    for block in model.blocks:
        block.attention = WatchedLayer(block.attention, layers, replace)  # pyright: ignore[reportAttributeAccessIssue]
    return Watched(np.asarray(model(run.normalised(images))[0], np.float32), layers)


class WatchedLayer(nnx.Module):
    """A layer as a block calls it, whose attention is written down and may be replaced."""

    def __init__(self, layer: SelfAttention, layers: list[Product], replace: Replace | None):
        self.layer, self.target, self.depends_on_content = layer, layer.target, layer.depends_on_content
        self.layers, self.replace = nnx.static(layers), nnx.static(replace)

    def with_intermediates(
        self, x: Float[Array, "b H W d"], key: None = None
    ) -> tuple[Float[Array, "b H W o"], dict[str, Any]]:
        """Returns the layer's output, and no intermediates."""
        maps, flat = self.layer.maps(), x.reshape(len(x), 1, -1, x.shape[-1])
        values = flat if maps.value is None else jnp.einsum("bpd,hdc->bhpc", flat[:, 0], maps.value)
        pixels = flat.shape[2]
        attention = self.layer.probabilities(x).reshape(-1, len(maps.output), pixels, pixels)
        attention = jnp.broadcast_to(attention, (len(x), *attention.shape[1:]))

        def output(attention):
            return jnp.einsum("bhqc,hco->bqo", attention @ values, maps.output).reshape(*x.shape[:3], -1)

        own = self.layer(x) - self.layer.bias
        difference = float(jnp.abs(output(attention) - own).max() / jnp.abs(own).max())
        self.layers.append(product(attention, values, attention @ values)._replace(difference=difference))
        if self.replace is None:
            return own + self.layer.bias, {}
        given = self.replace(len(self.layers) - 1, self.layers[-1].attention)
        return output(jnp.asarray(given, values.dtype)) + self.layer.bias, {}
