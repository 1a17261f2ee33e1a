"""Attention from all probabilities of a layer, the cheapest form for small pictures."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax.models.layers import at_least_float32, flattened


class Maps(NamedTuple):
    """Linear maps of every head; `c` is a head's channels, or `d` where `value` is None.

    Attributes:
      value: `W_val`, `(h, d, c)`; None where it is merged into `output`.
      output: `W_out`, `(h, c, o)`.
    """

    value: Float[Array, "h d c"] | None
    output: Float[Array, "h c o"]


def softmax(scores: Float[Array, "*heads p"]) -> Float[Array, "*heads p"]:
    """Softmax over keys, the last axis, in float32 or wider."""
    return jax.nn.softmax(scores.astype(at_least_float32(scores.dtype)), axis=-1)


def attend(probabilities: Float[Array, "q p"], values: Float[Array, "p c"]) -> Float[Array, "q c"]:
    """Average of the values over keys, for one head and one picture."""
    return jnp.einsum("qp,pc->qc", probabilities, values)


@jax.jit
def dense(
    probabilities: Float[Array, "h q p"] | Float[Array, "b h q p"], x: Float[Array, "b p d"], maps: Maps
) -> Float[Array, "b q o"]:
    """`sum_h attention_h X W_val^(h) W_out^(h)` from full probabilities.

    Args:
      probabilities: without an axis of pictures where all pictures share them.
      x: flattened pixels.
      maps: of every head.
    """
    values = x if maps.value is None else jnp.einsum("bpd,hdc->bphc", x, maps.value)
    heads = jax.vmap(attend, in_axes=(0, None if maps.value is None else 1), out_axes=1)
    pictures = jax.vmap(heads, in_axes=(None if probabilities.ndim == 3 else 0, 0))
    averages = pictures(probabilities.astype(x.dtype), values)
    output = maps.output.reshape(-1, maps.output.shape[-1])
    return flattened(lambda x: x @ output, averages.reshape(*averages.shape[:2], -1))
