"""How much of attention is computed at a time, by which implementation; without dropout all agree to rounding.

- `dense` holds the probabilities of all queries; of content, on CPUs, those of a few images at a time. The cheapest for
  small images.
- `factorised`, for scores that are a row score plus a column score, replaces the product with `(H W)^2` probabilities
  by one along rows and one along columns. No array has two pixel axes.
- `blocked` holds the probabilities of a block of query rows at a time. For all other scores and for dropout of single
  probabilities: memory grows as the pixels, time as their square.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

DENSE_BYTES = 2**28  # of probabilities that a layer may hold for the backward pass before the blocked form is taken
# Bytes of probabilities of content that are held at a time on CPUs, where they then stay in the cache: two images of
# 16x16 pixels, or 25 of 8x8 in a batch of 100, with nine heads. GPUs and TPUs hold those of all images.
PART_BYTES = 5 * 2**20
QUERIES_PER_BLOCK = 256
# On GPUs and TPUs a larger batch counts as one of so many images: several devices share it, or one has the memory.
# The number of devices itself must not choose, since dropout masks of the implementations differ.
IMAGES_PER_DEVICE = 100
# Time of a multiply-add of the averages, forward and backward, relative to dense. On 2 CPU cores a fit to times gave 3
# to 8 for factorised, whose small products are limited by memory; below 10x10 pixels all are within a quarter of each
# other. GPUs and TPUs: estimated from compiled programs, not measured.
FACTORISED_TIME = {"cpu": 5.0, "gpu": 14.0, "tpu": 16.0}
BLOCKED_TIME = 1.2  # 1.1 to 1.2 on CPUs: probabilities are computed twice


def implementation_for(layer: Any, shape: tuple[Any, ...], *, training: bool) -> str:
    """Name of the implementation that runs on images of this shape `(b, H, W, d)`.

    The one that the layer (`SelfAttention`) asks for where it applies, else the cheapest that fits.
    """
    drops = training and layer.dropout_rate > 0 and layer.dropout_on == "probabilities"
    factorises = layer.factorises and not drops
    if layer.implementation in ("dense", "blocked") or (layer.implementation == "factorised" and factorises):
        return layer.implementation
    # Whose probabilities dense attention keeps: 1 where all images share them, or a few are held at a time.
    images = shape[0] if layer.depends_on_content and (drops or layer.target != "cpu") else 1
    size, images = shape[1:3], images if layer.target == "cpu" else min(images, IMAGES_PER_DEVICE)
    pixels = math.prod(size)
    fits = 4 * layer.num_heads * pixels**2 * images <= DENSE_BYTES
    costs = {"dense": 1.0 * pixels} if fits else {"blocked": BLOCKED_TIME * pixels}
    if factorises:  # a platform that is not in the table counts as a GPU
        costs["factorised"] = FACTORISED_TIME.get(layer.target, FACTORISED_TIME["gpu"]) * sum(size)
    return min(costs, key=costs.__getitem__)


def in_parts(
    attend: Callable[..., Float[Array, "_ i W o"]],
    of_images: Any,
    *,
    images: int | None = None,
    height: int = 1,
    rows: int | None = None,
) -> Float[Array, "b H W o"]:
    """Attention of some images and of some query rows at a time.

    Parts take every n-th image, so that devices that share a batch share each part. A batch of symbolic size, as in a
    function that is exported, stays whole.

    `attend` takes a part of `of_images`, a tree of arrays with images first, the number of a block of query rows, and
    these rows `(i,)`. A part has at most `images`, a block `rows` of the query rows, `height` in all; None for all.
    """

    def of_rows(part):
        if rows is None:
            return attend(part, 0, jnp.arange(height))
        numbers = jnp.arange(height // rows)
        blocks = jax.lax.map(lambda number: attend(part, number, number * rows + jnp.arange(rows)), numbers)
        joined = jnp.moveaxis(blocks, 0, 1)
        return joined.reshape(joined.shape[0], height, *joined.shape[3:])

    batch = jax.tree.leaves(of_images)[0].shape[0]
    if images is None or not isinstance(batch, int) or batch <= max(1, images):
        return of_rows(of_images)
    size = max(n for n in range(1, max(1, images) + 1) if batch % n == 0)
    parts = jax.tree.map(lambda a: jnp.moveaxis(a.reshape(size, batch // size, *a.shape[1:]), 1, 0), of_images)
    result = jax.lax.map(of_rows, parts)
    return jnp.moveaxis(result, 0, 1).reshape(batch, *result.shape[2:])


def rows_per_block(height: int, width: int) -> int:
    """The most rows, dividing the height, that hold at most `QUERIES_PER_BLOCK` queries; at least one."""
    return max(n for n in range(1, height + 1) if height % n == 0 and (n == 1 or n * width <= QUERIES_PER_BLOCK))
