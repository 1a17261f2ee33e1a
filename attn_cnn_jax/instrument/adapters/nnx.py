"""Attention of Flax NNX networks, by their layers: `nnx.MultiHeadAttention`, and this package's `SelfAttention`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_cnn_jax.instrument.adapters import Product, Replace, Watched, product
from attn_cnn_jax.models.attention.cpu import dense
from attn_cnn_jax.models.attention.layer import SelfAttention


def watch(model: nnx.Module, images: Any, replace: Replace | None = None) -> Watched:
    """Runs a copy of a network in evaluation mode, an operation at a time; see `instrument.attention.watch`."""
    model, layers = nnx.clone(model), list[Product]()
    model.eval()

    def given(seen: Product, like: jax.Array) -> jax.Array:
        """Records a layer; returns the attention to use in place of its own, in the type of `like`."""
        layers.append(seen)
        own = seen.attention
        return jnp.asarray(own if replace is None else replace(len(layers) - 1, own), like.dtype)

    def attend(own: Callable, query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
        """The network's own function, `(b, n, h, c)`; averages of one-hot values, c at a time, are its attention."""
        tokens, channels = key.shape[-3], value.shape[-1]
        one_hot = jnp.eye(tokens, -(-tokens // channels) * channels, dtype=value.dtype)[:, None]
        parts = jnp.split(one_hot, one_hot.shape[-1] // channels, axis=-1)
        parts = [own(query, key, jnp.broadcast_to(part, value.shape), **options) for part in parts]
        attention = jnp.moveaxis(jnp.concatenate(parts, axis=-1)[..., :tokens], -3, -2)
        values, averages = jnp.moveaxis(value, -3, -2), own(query, key, value, **options)
        used = given(product(attention, values, jnp.moveaxis(averages, -3, -2)), value)
        return averages if replace is None else jnp.moveaxis(used @ values, -2, -3)

    def attend_over_pixels(layer: SelfAttention, x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """`SelfAttention._attend`, whose sum over heads is computed again by the one form for given attention."""
        maps, flat, pixels = layer.maps(), x.reshape(len(x), 1, -1, x.shape[-1]), x.shape[1] * x.shape[2]
        values = flat if maps.value is None else flat @ maps.value[None]
        attention = layer.probabilities(x).reshape(-1, layer.num_heads, pixels, pixels)
        attention = jnp.broadcast_to(attention, (len(x), *attention.shape[1:]))
        own, _ = SelfAttention._attend(layer, x, key)
        used = given(product(attention, values, own - layer.bias, dense(attention, x, maps)), x)
        return own if replace is None else dense(used, x, maps) + layer.bias, used

    for _, module in nnx.iter_modules(model):
        if isinstance(module, nnx.MultiHeadAttention):
            module.attention_fn = functools.partial(attend, module.attention_fn)
        elif isinstance(module, SelfAttention):
            module._attend = functools.partial(attend_over_pixels, module)
    output = model(jnp.asarray(images))
    output = output[0] if isinstance(output, tuple | list) else output
    return np.asarray(output, np.float32).reshape(len(output), -1), layers
