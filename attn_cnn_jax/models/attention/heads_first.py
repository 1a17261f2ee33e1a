"""Attention with content for TPUs: query and key maps merged as in `merged_content`, heads before pictures.

TPUs keep the last two axes of an array in tiles of at least 8 rows and 128 columns: an axis of heads there is padded,
and moved at great cost. With axes `(h, b, q, p)` each product runs for all heads at once and leaves them in front.

`einsum` sums over axes in the order of their letters, so letters follow the axes: `x`, `y` and `z` are channels.
"""

import functools
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn_cnn_jax.models.attention.merged_content import MergedMaps, gradient_of_scores, kept_of, signed_probabilities
from attn_cnn_jax.models.attention.pixels_first import for_each
from attn_cnn_jax.models.layers import at_least_float32


def dense_heads_first(
    x: Float[Array, "b p d"],
    merged: MergedMaps,
    positions: Float[Array, "h q p"] | None,
    output: Float[Array, "h d o"],
    keep: Bool[Array, "b h q p"] | None = None,
    factor: float = 1.0,
) -> Float[Array, "b q o"]:
    """`sum_h attention_h X W^(h)` from content scores of all pairs of pixels; arguments as for `dense_merged`."""
    batch, pixels, _ = x.shape
    heads, wide = len(output), at_least_float32(x.dtype)
    product = jnp.moveaxis(merged.product, 1, 0).astype(x.dtype)
    of_keys = jnp.zeros((heads, batch, pixels), wide)
    if merged.key is not None:
        of_keys = jnp.einsum("bpx,hx->hbp", x, merged.key.astype(x.dtype), preferred_element_type=wide)
    of_pairs = jnp.zeros((heads, pixels, pixels), wide) if positions is None else positions.astype(wide)
    if keep is not None:
        # Else XLA writes a dozen arrays of random bits beside the probabilities; the mask is one, a byte an entry.
        keep = jax.lax.optimization_barrier(jnp.swapaxes(keep, 0, 1))
    return cast(Array, attended(x, product, of_keys, of_pairs, output, keep, factor))


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def attended(
    x: Float[Array, "b p d"],
    product: Float[Array, "h d d"],
    of_keys: Float[Array, "h b p"],
    of_pairs: Float[Array, "h q p"],
    output: Float[Array, "h d o"],
    keep: Bool[Array, "h b q p"] | None,
    factor: float,
) -> Float[Array, "b q o"]:
    """`sum_h attention_h X W^(h)`; scores are `x_q M x_k` plus both terms.

    For its gradients it keeps the probabilities alone, as `merged_content.attended` does, and computes queries and
    values once more.
    """
    return attended_forward(x, product, of_keys, of_pairs, output, keep, factor)[0]


def attended_forward(x, product, of_keys, of_pairs, output, keep, factor):
    """`attended`, and what its gradients need."""
    pixels = for_each(len(output), x)
    queries = jnp.einsum("hbqx,hxy->hbqy", pixels, product)
    products = jnp.einsum("hbqy,hbpy->hbqp", queries, pixels, preferred_element_type=of_pairs.dtype)
    signed = signed_probabilities(products + of_keys[:, :, None] + of_pairs[:, None], keep, x.dtype)
    values = jnp.einsum("hbpx,hxz->hbpz", pixels, output)
    result = jnp.einsum("hbqp,hbpz->bqz", kept_of(signed, factor), values)
    return result, (x, product, output, signed)


def attended_backward(factor, residuals, gradient):
    """Gradients with respect to pixels, products, both terms of scores and output maps, from that of the result."""
    # Else XLA computes queries and values in the forward pass and keeps those of all layers.
    gradient, (x, product, output, signed) = jax.lax.optimization_barrier((gradient, residuals))
    pixels, of_heads = for_each(len(output), x), for_each(len(output), gradient)
    kept = kept_of(signed, factor)
    queries = jnp.einsum("hbqx,hxy->hbqy", pixels, product)
    values = jnp.einsum("hbpx,hxz->hbpz", pixels, output)
    of_kept = jnp.einsum("hbqz,hbpz->hbqp", of_heads, values)
    of_scores = gradient_of_scores(signed, factor, of_kept)
    of_values = jnp.einsum("hbqp,hbqz->hbpz", kept, of_heads)
    of_queries = jnp.einsum("hbqp,hbpy->hbqy", of_scores, pixels)
    of_x = (
        jnp.einsum("hbpz,hxz->bpx", of_values, output)
        + jnp.einsum("hbqy,hxy->bqx", of_queries, product)
        + jnp.einsum("hbqp,hbqy->bpy", of_scores, queries)
    )
    of_product = jnp.einsum("hbqx,hbqy->hxy", pixels, of_queries)
    of_output = jnp.einsum("hbpx,hbpz->hxz", pixels, of_values)
    of_terms = of_scores.astype(at_least_float32(x.dtype))
    return of_x, of_product, of_terms.sum(axis=2), of_terms.sum(axis=1), of_output, None


attended.defvjp(attended_forward, attended_backward)
