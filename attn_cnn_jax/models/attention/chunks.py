"""A few pictures at a time: on CPUs memory is slow, and what a few pictures need stays in the cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn_cnn_jax.models.attention.dense import Maps, dense
from attn_cnn_jax.models.layers import masked

# Those of two pictures of 16x16 pixels, or of 25 of 8x8 in a batch of 100, with nine heads.
PROBABILITIES_PER_CHUNK = 5 * 2**18


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


def dense_in_chunks(
    probabilities: Callable[[Float[Array, "_ H W d"]], Float[Array, "_ h i j k l"]],
    x: Float[Array, "b H W d"],
    maps: Maps,
    keep: Bool[Array, "b h q p"] | None,
    factor: float,
) -> Float[Array, "b H W o"]:
    """`dense` for attention that depends on content; the backward pass computes the probabilities of a chunk again.

    Args:
      probabilities: of some pictures.
      x: pictures.
      maps: of every head.
      keep: which probabilities dropout keeps; None for all.
      factor: what those that are kept are multiplied with.
    """
    _, height, width, channels = x.shape
    pixels = height * width

    @jax.checkpoint
    def of_chunk(pictures_and_keep):
        pictures, keep_of_chunk = pictures_and_keep
        of_pictures = probabilities(pictures).reshape(-1, len(maps.output), pixels, pixels)
        dropped = masked(of_pictures, keep_of_chunk, factor)
        return dense(dropped, pictures.reshape(-1, pixels, channels), maps)

    attended = in_chunks(of_chunk, (x, keep), PROBABILITIES_PER_CHUNK // (len(maps.output) * pixels**2))
    return attended.reshape(*x.shape[:3], -1)
