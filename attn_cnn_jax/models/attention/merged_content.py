"""Attention with content for GPUs: query and key maps merged, heads behind query pixels, so that nothing is transposed.

Up to a constant per query, which softmax ignores, `(W_q x_q + b_q) . (W_k x_k + b_k) = x_q M x_k + v x_k` with
`M = W_q^T W_k` and `v = W_k^T b_q`. As all heads then read the keys' activations themselves, every product takes the
activations as they lie, one picture after the other, `(b, pixels, channels)`: with axes `(b, q, h, p)` those that a
product sums over follow each other, forward and backward.

`einsum` sums over axes in the order of their letters, so letters follow the axes: `x` and `y` are channels.
"""

import functools
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from attn_cnn_jax.models.layers import at_least_float32


class MergedMaps(NamedTuple):
    """Maps of content scores `x_q M x_k + v x_k`, in the type of parameters.

    Attributes:
      product: `M`, `(d, h, d)`: channel of the query, head, channel of the key.
      key: `v`, `(h, d)`; None without.
    """

    product: Float[Array, "d h d"]
    key: Float[Array, "h d"] | None


def merge(
    query: Float[Array, "d h c"], key: Float[Array, "d h c"], query_bias: Float[Array, "h c"] | None
) -> MergedMaps:
    """Merged maps of `q . k / sqrt(c)`."""
    scale = query.shape[-1] ** -0.5
    product = jnp.einsum("xhc,yhc->xhy", query, key) * scale
    return MergedMaps(product, None if query_bias is None else jnp.einsum("hc,yhc->hy", query_bias, key) * scale)


def dense_merged(
    x: Float[Array, "b p d"],
    merged: MergedMaps,
    positions: Float[Array, "h q p"] | None,
    output: Float[Array, "h d o"],
    keep: Bool[Array, "b q h p"] | None = None,
    factor: float = 1.0,
) -> Float[Array, "b q o"]:
    """`sum_h attention_h X W^(h)` from content scores of all pairs of pixels.

    Args:
      x: flattened pixels.
      merged: of the content scores.
      positions: scores that are added.
      output: merged maps of values and output, in the type of activations.
      keep: which probabilities dropout keeps; None for all.
      factor: what those that are kept are multiplied with.
    """
    batch, pixels, channels = x.shape
    heads, wide = len(output), at_least_float32(x.dtype)
    product = merged.product.reshape(channels, -1).astype(x.dtype)
    queries = (x.reshape(-1, channels) @ product).reshape(batch, pixels * heads, channels)
    of_keys = jnp.zeros((batch, heads, pixels), wide)
    if merged.key is not None:
        of_keys = jnp.einsum("bpx,hx->bhp", x, merged.key.astype(x.dtype), preferred_element_type=wide)
    of_pairs = jnp.zeros((pixels, heads, pixels), wide)
    if positions is not None:
        of_pairs = jnp.moveaxis(positions.astype(wide), 0, 1)
    averages = cast(Array, attended(queries, x, of_keys, of_pairs, keep, factor))
    flat = averages.reshape(batch * pixels, -1) @ output.reshape(-1, output.shape[-1])
    return flat.reshape(batch, pixels, -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def attended(
    queries: Float[Array, "b m d"],
    x: Float[Array, "b p d"],
    of_keys: Float[Array, "b h p"],
    of_pairs: Float[Array, "q h p"],
    keep: Bool[Array, "b q h p"] | None,
    factor: float,
) -> Float[Array, "b m d"]:
    """Averages of the pixels, for every query and head, `m = q h`; scores are products plus both terms.

    For its gradients it keeps the probabilities alone, in the type of activations: those that dropout drops as
    negative numbers, which says which they are. Gradients of scores have that type too. Time goes into reading and
    writing arrays of this size.
    """
    return attended_forward(queries, x, of_keys, of_pairs, keep, factor)[0]


def attended_forward(queries, x, of_keys, of_pairs, keep, factor):
    """`attended`, and what its gradients need."""
    (heads, pixels), wide = of_keys.shape[1:], at_least_float32(x.dtype)
    products = jnp.einsum("bqx,bpx->bqp", queries, x, preferred_element_type=wide)
    scores = products.reshape(-1, pixels, heads, pixels) + of_keys[:, None] + of_pairs[None]
    signed = signed_probabilities(scores, keep, x.dtype).reshape(products.shape)
    return jnp.einsum("bqp,bpx->bqx", kept_of(signed, factor), x), (queries, x, signed)


def attended_backward(factor, residuals, gradient):
    """Gradients with respect to queries, pixels and both terms of scores, from that of the averages, `(b, m, d)`."""
    queries, x, signed = residuals
    heads, wide = signed.shape[1] // signed.shape[2], at_least_float32(x.dtype)
    kept = kept_of(signed, factor)
    of_kept = jnp.einsum("bqx,bpx->bqp", gradient, x)
    of_scores = gradient_of_scores(signed, factor, of_kept)
    of_queries = jnp.einsum("bqp,bpx->bqx", of_scores, x)
    of_x = jnp.einsum("bqp,bqx->bpx", of_scores, queries) + jnp.einsum("bqp,bqx->bpx", kept, gradient)
    by_head = of_scores.reshape(len(x), -1, heads, x.shape[1]).astype(wide)
    return of_queries, of_x, by_head.sum(axis=1), by_head.sum(axis=0), None


attended.defvjp(attended_forward, attended_backward)


def signed_probabilities(
    scores: Float[Array, "*any p"], keep: Bool[Array, "*any p"] | None, dtype: DTypeLike
) -> Float[Array, "*any p"]:
    """Softmax over keys; what dropout drops is negative, which `kept_of` and `gradient_of_scores` read."""
    probabilities = jax.nn.softmax(scores, axis=-1).astype(dtype)
    return probabilities if keep is None else jnp.where(keep, probabilities, -probabilities)


def kept_of(signed: Float[Array, "*any p"], factor: float) -> Float[Array, "*any p"]:
    """Probabilities after dropout, from those before, of which the dropped ones are negative."""
    return jnp.maximum(signed, 0) * jnp.asarray(factor, signed.dtype)


def gradient_of_scores(
    signed: Float[Array, "*any p"], factor: float, of_kept: Float[Array, "*any p"]
) -> Float[Array, "*any p"]:
    """Gradient with respect to scores from that of the probabilities after dropout; `signed` as for `kept_of`."""
    wide = at_least_float32(signed.dtype)
    along = kept_of(signed, factor).astype(wide) * of_kept.astype(wide)
    return (along - jnp.abs(signed).astype(wide) * along.sum(axis=-1, keepdims=True)).astype(signed.dtype)
