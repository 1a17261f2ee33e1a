"""A few pictures at a time: on CPUs memory is slow, and what a few pictures need stays in the cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def in_chunks(function: Callable[[Any], Float[Array, "_ ..."]], arrays: Any, most: int) -> Float[Array, "b ..."]:
    """`function(arrays)`, at most `most` pictures at a time, at least one.

    Chunks take every n-th picture, so that devices that share a batch share each chunk. A batch of symbolic size, as
    in a function that is exported, stays whole.

    Args:
      function: of a tree of arrays like `arrays`; computes every picture on its own.
      arrays: a tree of arrays, pictures first.
      most: pictures of a chunk.
    """
    batch = jax.tree.leaves(arrays)[0].shape[0]
    if not isinstance(batch, int):
        return function(arrays)
    size = max(n for n in range(1, batch + 1) if batch % n == 0 and n <= max(1, most)) if batch else 0
    if size in (0, batch):
        return function(arrays)
    chunks = jax.tree.map(lambda a: jnp.moveaxis(a.reshape(size, batch // size, *a.shape[1:]), 1, 0), arrays)
    result = jax.lax.map(function, chunks)
    return jnp.moveaxis(result, 0, 1).reshape(batch, *result.shape[2:])
