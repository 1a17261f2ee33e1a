"""Attention kernels: an einsum for one head and one picture, vmapped over heads and pictures.

Probabilities and values in, head averages out:
`head_h(X)_q = sum_p softmax_p(score_h(q, .))_p values_p`.
"""

import jax
import jax.numpy as jnp

from attn_cnn_jax.models.scores import at_least_float32

# Up to this many pixels one large product beats two small contractions (measured on two CPU cores: at 64 pixels
# the dense step took half the time, at 256 two thirds; arithmetic favours the factorised form by sqrt(pixels) / 2).
DENSE_PIXELS = 256


def choose(kernel: str, num_pixels: int) -> str:
    """The kernel for attention that factorises: the one asked for, or for "auto" the faster one."""
    if kernel == "auto":
        return "dense" if num_pixels <= DENSE_PIXELS else "factorised"
    return kernel


def attend(probabilities: jax.Array, values: jax.Array) -> jax.Array:
    """Average of the values over keys for one head and one picture: `(q, p), (p, d) -> (q, d)`."""
    return jnp.einsum("qp,pd->qd", probabilities, values)


def attend_factorised(rows: jax.Array, columns: jax.Array, values: jax.Array) -> jax.Array:
    """The same where attention is a product of a row and a column softmax.

    `(i, k), (j, l), (k, l, d) -> (i, j, d)`, two small contractions instead of one over all pixels.
    """
    return jnp.einsum("ik,kjd->ijd", rows, jnp.einsum("jl,kld->kjd", columns, values))


def softmax(scores: jax.Array) -> jax.Array:
    """Softmax over keys, the last axis, in float32 or wider: `(..., p) -> (..., p)`."""
    return jax.nn.softmax(scores.astype(at_least_float32(scores.dtype)), axis=-1)


@jax.jit
def dense(probabilities: jax.Array, values: jax.Array) -> jax.Array:
    """Head averages from full probabilities.

    Args:
      probabilities: `(h, q, p)` where attention does not depend on the picture, else `(b, h, q, p)`.
      values: `(b, p, d)`, the same for every head, or `(b, p, h, d)`.

    Returns:
      `(b, q, h, d)`.
    """
    heads = jax.vmap(attend, in_axes=(0, None if values.ndim == 3 else 1), out_axes=1)
    pictures = jax.vmap(heads, in_axes=(None if probabilities.ndim == 3 else 0, 0))
    return pictures(probabilities.astype(values.dtype), values)


@jax.jit
def factorised(rows: jax.Array, columns: jax.Array, values: jax.Array) -> jax.Array:
    """Head averages from row and column probabilities; no array has two pixel axes.

    Args:
      rows: `(h, i, k)`.
      columns: `(h, j, l)`.
      values: `(b, k, l, d)`, the same for every head, or `(b, k, l, h, d)`.

    Returns:
      `(b, i, j, h, d)`.
    """
    heads = jax.vmap(attend_factorised, in_axes=(0, 0, None if values.ndim == 4 else 2), out_axes=2)
    pictures = jax.vmap(heads, in_axes=(None, None, 0))
    return pictures(rows.astype(values.dtype), columns.astype(values.dtype), values)


def outer(rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Full probabilities of factorised attention: `(h, i, k), (h, j, l) -> (h, i j, k l)`."""
    heads, height, _ = rows.shape
    pixels = height * columns.shape[1]
    product = rows[:, :, None, :, None] * columns[:, None, :, None, :]
    return product.reshape(heads, pixels, pixels)
