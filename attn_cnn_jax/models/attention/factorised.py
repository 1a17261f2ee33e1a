"""Attention that is a product of a row and a column softmax: no array has two pixel axes."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.chunks import in_chunks
from attn_cnn_jax.models.attention.dense import Maps
from attn_cnn_jax.models.layers import at_least_float32, flattened

# On CPUs the factorised products are limited by memory: a picture or a few at a time stay in the cache.
PIXELS_PER_CHUNK = 1280


def outer(rows: Float[Array, "h i k"], columns: Float[Array, "h j l"]) -> Float[Array, "h q p"]:
    """Full probabilities of factorised attention, pixels flattened: `q = i j`, `p = k l`."""
    product = rows[:, :, None, :, None] * columns[:, None, :, None, :]
    return product.reshape(rows.shape[0], rows.shape[1] * columns.shape[1], -1)


def attend_factorised(
    rows: Float[Array, "i k"], columns: Float[Array, "j l"], values: Float[Array, "k l c"]
) -> Float[Array, "i j c"]:
    """Average of the values over keys, for one head."""
    height, width, channels = values.shape
    # As one matrix product: XLA makes a slower one of three axes.
    by_row = jnp.einsum("ik,kn->in", rows, values.reshape(height, -1)).reshape(-1, width, channels)
    # The columns are repeated for every row, since XLA would otherwise transpose the values on CPUs.
    repeated = jnp.broadcast_to(columns, (rows.shape[0], *columns.shape))
    return jnp.einsum("ijl,ilc->ijc", repeated, by_row)


@functools.partial(jax.jit, static_argnames="platform")
def factorised(
    rows: Float[Array, "h i k"],
    columns: Float[Array, "h j l"],
    x: Float[Array, "b k l d"],
    maps: Maps,
    *,
    platform: str,
) -> Float[Array, "b i j o"]:
    """`sum_h attention_h X W_val^(h) W_out^(h)` from row and column probabilities, a head at a time."""
    axes = rows.astype(x.dtype), columns.astype(x.dtype)

    def average(head, values):
        # Pictures are averaged like channels, as one axis: that makes the products larger.
        by_row, by_column = head
        flat = attend_factorised(by_row, by_column, values.reshape(*values.shape[:2], -1))
        return flat.reshape(*flat.shape[:2], *values.shape[2:])

    def attended(x):
        return sum_over_heads(average, axes, x, maps)

    most = PIXELS_PER_CHUNK // math.prod(x.shape[1:3])
    return in_chunks(attended, x, most) if platform == "cpu" else attended(x)


def sum_over_heads(average: Callable, heads: Any, x: Float[Array, "b k l d"], maps: Maps) -> Float[Array, "b i j o"]:
    """`sum_h average(head_h, X W_val^(h)) W_out^(h)`, one head after the other, so that no array holds all of them.

    Pictures lie between pixels and channels here: all products are then plain ones, without transposes.

    Args:
      average: takes one head's entry of `heads` and its values `(k, l, b, c)`, returns `(i, j, b, c)`.
      heads: a tree of arrays, heads first.
      x: pictures.
      maps: of every head.
    """
    x = jnp.moveaxis(x, 0, 2)
    total_dtype = at_least_float32(x.dtype)

    def of_head(head, maps):
        values = x if maps.value is None else flattened(lambda x: x @ maps.value, x)
        averages = average(head, values)
        return flattened(lambda x: jnp.matmul(x, maps.output, preferred_element_type=total_dtype), averages)

    @jax.checkpoint  # an average costs less than reading it back
    def add_head(total, head_and_maps):
        return total + of_head(*head_and_maps), None

    shape = jax.eval_shape(of_head, *jax.tree.map(lambda leaf: leaf[0], (heads, maps)))
    total, _ = jax.lax.scan(add_head, jnp.zeros(shape.shape, total_dtype), (heads, maps))
    return jnp.moveaxis(total, 2, 0).astype(x.dtype)
