"""Attention kernels: an einsum for one head and one picture, vmapped over pictures and heads.

All compute `sum_h softmax(score_h) X W_val^(h) W_out^(h)`, to rounding the same:

- `dense` holds all probabilities of a layer. The cheapest for small pictures.
- `factorised`, for scores that are a row score plus a column score, replaces the product with `(H W)^2`
  probabilities by one along rows and one along columns. No array has two pixel axes.
- `blocked` holds the probabilities of a few queries at a time and computes them again in the backward pass.
  For all other scores and for dropout of single probabilities: memory grows as the pixels, time as their square.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attn_cnn_jax.models.attention.scores import at_least_float32
from attn_cnn_jax.models.layers import of_flat

# Probabilities that a layer may keep for the backward pass before the blocked form is taken.
DENSE_BYTES = 2**28
# Time of a multiply-add of each kernel's averages, forward and backward, beside one of dense averages. On 2 CPU
# cores `python -m benchmarks.kernels` fits 3 to 8 to factorised, whose small products are limited by memory, and 1.1 to
# 1.2 to blocked, which computes probabilities twice; below 10x10 pixels all are within a quarter of each other.
TIME_OF_A_MULTIPLY_ADD = {"dense": 1.0, "factorised": 5.0, "blocked": 1.2}
QUERIES_A_BLOCK = 256
# On CPUs the factorised products are limited by memory: a picture or a few at a time stay in the cache.
PIXELS_A_CHUNK = 1280


class Maps(NamedTuple):
    """Linear maps of every head.

    Attributes:
      value: `W_val`, `(h, D, d)`; None where it is merged into `output`.
      output: `W_out`, `(h, d, o)`.
    """

    value: jax.Array | None
    output: jax.Array


def choose(
    kernel: str,
    *,
    factorises: bool,
    pictures_share: bool,
    shape: tuple[int, ...],
    num_heads: int,
) -> str:
    """The kernel asked for where it applies; for "auto", and where it doesn't, the cheapest that fits.

    Args:
      kernel: "auto", "dense", "factorised" or "blocked".
      factorises: whether attention is a product, also after dropout.
      pictures_share: whether all pictures have the same attention.
      shape: of the activations, `(b, H, W, D)`.
      num_heads: of the layer.
    """
    if kernel in ("dense", "blocked") or (kernel == "factorised" and factorises):
        return kernel
    batch, height, width, _ = shape
    probabilities = num_heads * (height * width) ** 2 * (1 if pictures_share else batch)
    possible = ["blocked"]
    possible += ["dense"] if 4 * probabilities <= DENSE_BYTES else []
    possible += ["factorised"] if factorises else []
    return min(possible, key=lambda name: cost(name, height, width))


def cost(kernel: str, height: int, width: int) -> float:
    """What a kernel's average over keys costs for one query pixel and channel, in multiply-adds of the dense one.

    All else, above all the value and output maps, is the same for all kernels.
    """
    multiply_adds = height + width if kernel == "factorised" else height * width
    return TIME_OF_A_MULTIPLY_ADD[kernel] * multiply_adds


def attend(probabilities: jax.Array, values: jax.Array) -> jax.Array:
    """Average of the values over keys for one head and one picture: `(q, p), (p, d) -> (q, d)`."""
    return jnp.einsum("qp,pd->qd", probabilities, values)


def attend_factorised(rows: jax.Array, columns: jax.Array, values: jax.Array) -> jax.Array:
    """The same where attention is a product of a row and a column softmax.

    `(i, k), (j, l), (k, l, d) -> (i, j, d)`.
    """
    height, width, channels = values.shape
    # As one matrix product: of three axes XLA makes a slower one.
    by_row = jnp.einsum("ik,kn->in", rows, values.reshape(height, -1)).reshape(-1, width, channels)
    # The columns are repeated for every row, since XLA would otherwise transpose the values on CPUs.
    repeated = jnp.broadcast_to(columns, (rows.shape[0], *columns.shape))
    return jnp.einsum("ijl,ild->ijd", repeated, by_row)


def softmax(scores: jax.Array) -> jax.Array:
    """Softmax over keys, the last axis, in float32 or wider: `(..., p) -> (..., p)`."""
    return jax.nn.softmax(scores.astype(at_least_float32(scores.dtype)), axis=-1)


@jax.jit
def dense(probabilities: jax.Array, x: jax.Array, maps: Maps) -> jax.Array:
    """Attention from full probabilities.

    Args:
      probabilities: `(h, q, p)` where attention does not depend on the picture, else `(b, h, q, p)`.
      x: `(b, p, D)`.
      maps: of every head.

    Returns:
      `(b, q, o)`.
    """
    values = x if maps.value is None else jnp.einsum("bpD,hDd->bphd", x, maps.value)
    heads = jax.vmap(attend, in_axes=(0, None if maps.value is None else 1), out_axes=1)
    pictures = jax.vmap(heads, in_axes=(None if probabilities.ndim == 3 else 0, 0))
    averages = pictures(probabilities.astype(x.dtype), values)
    output = maps.output.reshape(-1, maps.output.shape[-1])
    return of_flat(lambda x: x @ output, averages.reshape(*averages.shape[:2], -1))


@jax.jit
def factorised(rows: jax.Array, columns: jax.Array, x: jax.Array, maps: Maps) -> jax.Array:
    """Attention from row and column probabilities, a head at a time.

    Args:
      rows: `(h, i, k)`.
      columns: `(h, j, l)`.
      x: `(b, k, l, D)`.
      maps: of every head.

    Returns:
      `(b, i, j, o)`.
    """
    axes = rows.astype(x.dtype), columns.astype(x.dtype)

    def average(head, values):
        """Pictures are averaged like channels: as one axis, which makes the products larger."""
        flat = attend_factorised(*head, values.reshape(*values.shape[:2], -1))
        return flat.reshape(*flat.shape[:2], *values.shape[2:])

    def attention(x):
        return sum_over_heads(average, axes, x, maps)

    return in_chunks(attention, x)


def sum_over_heads(average: Callable, heads, x: jax.Array, maps: Maps) -> jax.Array:
    """`sum_h average(head_h, X W_val^(h)) W_out^(h)`, one head after the other, so that no array holds all of them.

    Pictures lie between pixels and channels here: all products are then plain ones, without transposes.

    Args:
      average: takes one head's entry of `heads` and its values `(k, l, b, d)`, returns `(i, j, b, d)`.
      heads: a tree of arrays, heads first.
      x: `(b, k, l, D)`.

    Returns:
      `(b, i, j, o)`.
    """
    x = jnp.moveaxis(x, 0, 2)
    total_dtype = at_least_float32(x.dtype)

    def of_head(head, maps):
        values = x if maps.value is None else of_flat(lambda x: x @ maps.value, x)
        averages = average(head, values)
        return of_flat(lambda x: jnp.matmul(x, maps.output, preferred_element_type=total_dtype), averages)

    @jax.checkpoint  # an average costs less than reading it back
    def add_head(total, head_and_maps):
        return total + of_head(*head_and_maps), None

    shape = jax.eval_shape(of_head, *jax.tree.map(lambda leaf: leaf[0], (heads, maps)))
    total, _ = jax.lax.scan(add_head, jnp.zeros(shape.shape, total_dtype), (heads, maps))
    return jnp.moveaxis(total, 2, 0).astype(x.dtype)


def in_chunks(function: Callable, x: jax.Array) -> jax.Array:
    """`function(x)`, on CPUs a few pictures at a time.

    Chunks take every n-th picture, so that devices that share a batch share each chunk.
    """
    batch, *pixels, _ = x.shape
    wanted = max(1, PIXELS_A_CHUNK // math.prod(pixels))
    size = max(n for n in range(1, batch + 1) if batch % n == 0 and n <= wanted) if batch else 0
    if jax.default_backend() != "cpu" or size in (0, batch):
        return function(x)
    chunks = jnp.moveaxis(x.reshape(size, batch // size, *x.shape[1:]), 1, 0)
    result = jax.lax.map(function, chunks)
    return jnp.moveaxis(result, 0, 1).reshape(batch, *result.shape[2:])


def blocked(probabilities: Callable, x: jax.Array, maps: Maps) -> jax.Array:
    """Attention a block of query rows at a time, each computed again in the backward pass.

    Args:
      probabilities: takes the number of a block and its query rows `(i,)`; returns what `dense` takes, for the
        pixels of these rows as queries.
      x: `(b, H, W, D)`.
      maps: of every head.

    Returns:
      `(b, H, W, o)`.
    """
    batch, height, width, _ = x.shape
    keys = x.reshape(batch, height * width, -1)
    rows = rows_a_block(height, width)

    @jax.checkpoint
    def of_block(block):
        return dense(probabilities(block, block * rows + jnp.arange(rows)), keys, maps)

    blocks = jax.lax.map(of_block, jnp.arange(height // rows))
    return jnp.moveaxis(blocks, 0, 1).reshape(batch, height, width, -1)


def rows_a_block(height: int, width: int) -> int:
    """The most rows, dividing the height, that hold at most `QUERIES_A_BLOCK` queries; at least one."""
    return max(n for n in range(1, height + 1) if height % n == 0 and (n == 1 or n * width <= QUERIES_A_BLOCK))


def outer(rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Full probabilities of factorised attention: `(h, i, k), (h, j, l) -> (h, i j, k l)`."""
    product = rows[:, :, None, :, None] * columns[:, None, :, None, :]
    return product.reshape(rows.shape[0], rows.shape[1] * columns.shape[1], -1)
