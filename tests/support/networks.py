"""Networks applied as training and `load_run` apply them: compiled, so that only what is asked for is computed."""

import functools

import jax

from attn_cnn_jax.models.variables import join, split


def logits_of(model, images, key=None):
    """Logits `(b, classes)` of normalised pictures."""
    skeleton, *arrays = split(model)
    return joined(skeleton, arrays, images, key)


@functools.partial(jax.jit, static_argnames="skeleton")
def joined(skeleton, arrays, images, key):
    """The same from a network in parts: equal networks are compiled once."""
    return join(skeleton, *arrays)(images, key=key)[0]
