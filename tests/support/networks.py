"""Networks applied as training and `load_run` apply them: compiled, so that only what is asked for is computed."""

import jax

from attn_cnn_jax.models.variables import join, split


def logits_of(model, images, key=None):
    """Logits `(b, classes)` of normalised pictures."""
    skeleton, *arrays = split(model)
    return jax.jit(lambda arrays, x: join(skeleton, *arrays)(x, key=key)[0])(arrays, images)
