"""Attention with content for GPUs: query and key maps merged, heads behind query pixels, so that nothing is transposed.

Up to a constant per query, which softmax ignores, `(W_q x_q + b_q) . (W_k x_k + b_k) = x_q M x_k + v x_k` with
`M = W_q^T W_k` and `v = W_k^T b_q`. As all heads then read the keys' activations themselves, every product takes the
activations as they lie, one picture after the other, `(b, pixels, channels)`: with axes `(b, q, h, p)` those that a
product sums over follow each other, forward and backward.

`einsum` sums over axes in the order of their letters, so letters follow the axes: `b h p` and then `x y` channels.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
    drop: Callable[[Float[Array, "b q h p"]], Float[Array, "b q h p"]],
) -> Float[Array, "b q o"]:
    """`sum_h attention_h X W^(h)` from content scores of all pairs of pixels.

    Args:
      x: flattened pixels.
      merged: of the content scores.
      positions: scores that are added.
      output: merged maps of values and output, in the type of activations.
      drop: dropout of probabilities.
    """
    batch, pixels, channels = x.shape
    heads, wide = len(output), at_least_float32(x.dtype)
    product = merged.product.reshape(channels, -1).astype(x.dtype)
    queries = (x.reshape(-1, channels) @ product).reshape(batch, pixels * heads, channels)
    scores = jnp.einsum("bqx,bpx->bqp", queries, x, preferred_element_type=wide)
    scores = scores.reshape(batch, pixels, heads, pixels)
    if merged.key is not None:
        of_keys = jnp.einsum("bpx,hx->bhp", x, merged.key.astype(x.dtype), preferred_element_type=wide)
        scores += of_keys[:, None]
    if positions is not None:
        scores += jnp.moveaxis(positions.astype(wide), 0, 1)[None]
    probabilities = drop(jax.nn.softmax(scores, axis=-1)).astype(x.dtype)
    averages = jnp.einsum("bqp,bpx->bqx", probabilities.reshape(batch, -1, pixels), x)
    flat = averages.reshape(batch * pixels, -1) @ output.reshape(-1, output.shape[-1])
    return flat.reshape(batch, pixels, -1)
