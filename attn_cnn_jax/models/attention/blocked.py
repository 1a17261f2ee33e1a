"""Attention a block of query rows at a time, computed again in the backward pass: memory grows as the pixels."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.dense import Maps, dense

QUERIES_PER_BLOCK = 256


def blocked(probabilities: Callable, x: Float[Array, "b H W d"], maps: Maps) -> Float[Array, "b H W o"]:
    """`sum_h attention_h X W_val^(h) W_out^(h)`, a block of query rows at a time.

    Args:
      probabilities: takes the number of a block and its query rows `(i,)`; returns what `dense` takes, for the
        pixels of these rows as queries.
      x: pictures.
      maps: of every head.
    """
    batch, height, width, _ = x.shape
    keys = x.reshape(batch, height * width, -1)
    rows = rows_per_block(height, width)

    @jax.checkpoint
    def of_block(block):
        return dense(probabilities(block, block * rows + jnp.arange(rows)), keys, maps)

    blocks = jax.lax.map(of_block, jnp.arange(height // rows))
    return jnp.moveaxis(blocks, 0, 1).reshape(batch, height, width, -1)


def rows_per_block(height: int, width: int) -> int:
    """Returns the most rows, dividing the height, that hold at most `QUERIES_PER_BLOCK` queries; at least one."""
    return max(n for n in range(1, height + 1) if height % n == 0 and (n == 1 or n * width <= QUERIES_PER_BLOCK))
