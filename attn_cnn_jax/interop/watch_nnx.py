"""Attention of Flax NNX networks with `nnx.MultiHeadAttention`, through the function that each of them calls."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_cnn_jax.interop.watch import Product, Replace, Watched, product


def watch(model: nnx.Module, images: Any, replace: Replace | None = None) -> Watched:
    """Runs a copy of a network in evaluation mode, an operation at a time; see `instrument.networks.watch`."""
    model, layers = nnx.clone(model), list[Product]()
    model.eval()

    def attend(own: Callable, query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
        """The network's own function, `(b, n, h, c)`; averages of one-hot values, c at a time, are its attention."""
        tokens, channels = key.shape[-3], value.shape[-1]
        one_hot = jnp.eye(tokens, -(-tokens // channels) * channels, dtype=value.dtype)[:, None]
        parts = jnp.split(one_hot, one_hot.shape[-1] // channels, axis=-1)
        parts = [own(query, key, jnp.broadcast_to(part, value.shape), **options) for part in parts]
        attention = jnp.moveaxis(jnp.concatenate(parts, axis=-1)[..., :tokens], -3, -2)
        values, averages = jnp.moveaxis(value, -3, -2), own(query, key, value, **options)
        seen = product(attention, values, jnp.moveaxis(averages, -3, -2))
        layers.append(seen)
        if replace is None:
            return averages
        given = jnp.asarray(replace(len(layers) - 1, seen.attention), value.dtype)
        return jnp.moveaxis(given @ values, -2, -3)

    for _, module in nnx.iter_modules(model):
        if isinstance(module, nnx.MultiHeadAttention):
            module.attention_fn = functools.partial(attend, module.attention_fn)
    output = model(jnp.asarray(images))
    output = output[0] if isinstance(output, tuple | list) else output
    return Watched(np.asarray(output, np.float32).reshape(len(output), -1), layers)
