"""Networks applied as training and `load_run` apply them: compiled, so that only what is asked for is computed."""

import functools

import jax
import jax.numpy as jnp

from attn_cnn_jax.models.encodings import Absolute, Projections, QueryKey
from attn_cnn_jax.models.variables import join, split


def logits_of(model, images, key=None):
    """Logits `(b, classes)` of normalised pictures."""
    skeleton, *arrays = split(model)
    return joined(skeleton, arrays, images, key)


@functools.partial(jax.jit, static_argnames="skeleton")
def joined(skeleton, arrays, images, key):
    """The same from a network in parts: equal networks are compiled once."""
    return join(skeleton, *arrays)(images, key=key)[0]


def separate_terms(layer, x):
    """Content terms of a layer by their names in the paper: of absolute positions the four of eq. 7."""
    position = layer.position
    if not isinstance(position, Absolute):
        return layer.content_terms(x)
    vectors = jnp.broadcast_to(position.position_vectors(x), x.shape)
    alone = {"content": QueryKey.project(position, x), "position": QueryKey.project(position, vectors)}
    rows = jnp.arange(x.shape[1])
    return {
        f"{q}_{k}": QueryKey.content_terms(position, Projections(queries.query, keys.key), rows)["content"]
        for q, queries in alone.items()
        for k, keys in alone.items()
    }
