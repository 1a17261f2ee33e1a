"""Attention for GPUs and TPUs: pixels before pictures, values before averages; no array of all heads is transposed.

In `(pixels, pictures, channels)` an average over keys is one plain product for all pictures. Its gradients are written
out: those of autodiff contract heads and channels that lie apart, which costs a transpose of the largest arrays there
are, `(h, q, b, d)`. The ones below compute the averages once more instead, and nothing of that size is kept.

The factorised form is limited by memory: of all orders of its three products this one reads and writes the least, as no
axis of heads is summed before the last. Each axis that a product sums over lies next to others that it sums over.
`einsum` sums over axes in the order of their letters, so letters follow the axes: `n` pictures, `x` and `y` channels.
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
    of_heads = for_each(len(maps), gradient)
    wide = at_least_float32(x.dtype)
    of_averages = jnp.einsum("hqbo,hdo->hqbd", of_heads, maps)
    of_x = jnp.einsum("hqp,hqbd->pbd", probabilities, of_averages)
    of_probabilities = jnp.einsum("hqbd,pbd->hqp", of_averages, x, preferred_element_type=wide)
    averages = jnp.einsum("hqp,pbd->hqbd", probabilities, x)
    of_maps = jnp.einsum("hqbd,hqbo->hdo", averages, of_heads, preferred_element_type=wide)
    gradients = of_probabilities.astype(probabilities.dtype), of_x, of_maps.astype(maps.dtype)
    # Else XLA puts off the maps' gradients on several GPUs, to overlap them with sums between devices, and keeps the
    # averages of all layers until then.
    return jax.lax.optimization_barrier(gradients)


attended.defvjp(attended_forward, attended_backward)


@jax.custom_vjp
def attended_by_factors(
    rows: Float[Array, "h i k"], columns: Float[Array, "h j l"], x: Float[Array, "k l b d"], maps: Float[Array, "h d o"]
) -> Float[Array, "i j b o"]:
    """`sum_h attention_h X W^(h)`, where attention is the product of row and column probabilities.

    Values of all heads, averages along columns, then one product over (head, row). Memory grows as the pixels.
    """
    values = jnp.einsum("hklnx,hxy->hklny", for_each(len(maps), x), maps)
    by_column = jnp.einsum("hkjl,hklny->hkjny", for_each(x.shape[0], columns, 1), values)
    return jnp.einsum("hik,hkjny->ijny", rows, by_column)


def attended_by_factors_forward(rows, columns, x, maps):
    """`attended_by_factors`, and what its gradients need: the arguments."""
    return attended_by_factors(rows, columns, x, maps), (rows, columns, x, maps)


def attended_by_factors_backward(arguments, gradient):
    """Gradients with respect to row and column probabilities, pixels and maps, from that of the result, `(i, j, b, o)`.

    Through the products in another order, maps first, so that pixels too come from one product over (head, row).
    """
    # As in `attended_backward`.
    gradient, (rows, columns, x, maps) = jax.lax.optimization_barrier((gradient, arguments))
    wide = at_least_float32(x.dtype)
    of_heads, columns_of_rows = for_each(len(maps), gradient), for_each(x.shape[0], columns, 1)
    of_averages = jnp.einsum("hijny,hxy->hijnx", of_heads, maps)
    of_by_row = jnp.einsum("hijl,hijnx->hilnx", columns_of_rows, of_averages)
    of_x = jnp.einsum("hik,hilnx->klnx", rows, of_by_row)
    of_rows = jnp.einsum("hilnx,klnx->hik", of_by_row, x, preferred_element_type=wide)
    by_row = jnp.einsum("hik,klnx->hilnx", rows, x)
    of_columns = jnp.einsum("hijnx,hilnx->hijl", of_averages, by_row, preferred_element_type=wide).sum(axis=1)
    averages = jnp.einsum("hijl,hilnx->hijnx", columns_of_rows, by_row)
    of_maps = jnp.einsum("hijnx,hijny->hxy", averages, of_heads, preferred_element_type=wide)
    return of_rows.astype(rows.dtype), of_columns.astype(columns.dtype), of_x, of_maps.astype(maps.dtype)


attended_by_factors.defvjp(attended_by_factors_forward, attended_by_factors_backward)


def for_each(count: int, x: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """The array repeated along a new axis: products with that axis on both sides leave it where it is."""
    return jnp.broadcast_to(jnp.expand_dims(x, axis), (*x.shape[:axis], count, *x.shape[axis:]))
