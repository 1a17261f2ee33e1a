"""Attention for GPUs: pixels before pictures, values before averages, so that no array of all heads is transposed.

In `(pixels, pictures, channels)` an average over keys is one plain product for all pictures. Its gradients are written
out: those of autodiff contract heads and channels that lie apart, which costs a transpose of the largest arrays there
are, `(h, q, b, d)`. The ones below compute the averages once more instead, and nothing of that size is kept.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.dense import Maps
from attn_cnn_jax.models.layers import at_least_float32


def dense_pixels_first(
    probabilities: Float[Array, "h q p"], x: Float[Array, "p b d"], maps: Maps
) -> Float[Array, "q b o"]:
    """`sum_h attention_h X W_val^(h) W_out^(h)` from probabilities that all pictures share; see `dense.dense`."""
    probabilities = probabilities.astype(x.dtype)
    if maps.value is None:
        return attended(probabilities, x, maps.output)
    values = jnp.einsum("pbd,hdc->hpbc", x, maps.value)
    averages = jnp.einsum("hqp,hpbc->hqbc", probabilities, values)
    return jnp.einsum("hqbc,hco->qbo", averages, maps.output)


@jax.custom_vjp
def attended(
    probabilities: Float[Array, "h q p"], x: Float[Array, "p b d"], maps: Float[Array, "h d o"]
) -> Float[Array, "q b o"]:
    """`sum_h attention_h X W^(h)`."""
    values = jnp.einsum("pbd,hdo->hpbo", x, maps)
    return jnp.einsum("hqp,hpbo->qbo", probabilities, values)


def attended_forward(probabilities, x, maps):
    """`attended`, and what its gradients need: the arguments."""
    return attended(probabilities, x, maps), (probabilities, x, maps)


def attended_backward(arguments, gradient):
    """Gradients with respect to probabilities, pixels and maps, from that of the result, `(q, b, o)`.

    Products with an axis of heads on both sides run for all heads at once and leave heads in front; the copies for each
    head are read, not made.
    """
    # Else XLA computes the averages in the forward pass, where all they need is known, and keeps those of all layers.
    gradient, (probabilities, x, maps) = jax.lax.optimization_barrier((gradient, arguments))
    of_heads = jnp.broadcast_to(gradient, (len(maps), *gradient.shape))
    wide = at_least_float32(x.dtype)
    of_averages = jnp.einsum("hqbo,hdo->hqbd", of_heads, maps)
    of_x = jnp.einsum("hqp,hqbd->pbd", probabilities, of_averages)
    of_probabilities = jnp.einsum("hqbd,pbd->hqp", of_averages, x, preferred_element_type=wide)
    averages = jnp.einsum("hqp,pbd->hqbd", probabilities, x)
    of_maps = jnp.einsum("hqbd,hqbo->hdo", averages, of_heads, preferred_element_type=wide)
    return of_probabilities.astype(probabilities.dtype), of_x, of_maps.astype(maps.dtype)


attended.defvjp(attended_forward, attended_backward)
