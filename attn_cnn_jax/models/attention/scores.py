"""Score functions of the paper for one head: pure, of shifts and of content.

Axis letters: `i j` query row and column, `k l` key row and column, `q` a flattened query pixel,
`p` a flattened key pixel, `d` channel. The softmax over keys of the sum of a head's scores is its
attention; constants that don't depend on the key drop out there.
"""

import jax
import jax.numpy as jnp


def quadratic_axis(shift: jax.Array, centre: jax.Array, spread: jax.Array) -> jax.Array:
    """One axis of the isotropic quadratic encoding (eq. 9): `-alpha (delta - Delta)^2`.

    `alpha = spread^2 / 2`, so `spread` is the inverse standard deviation of the attention. The
    whole score `-alpha |delta - Delta|^2` is the sum of both axes.

    Args:
      shift: `delta` along this axis in pixels, any shape.
      centre: `Delta` along this axis in pixels, a scalar.
      spread: one over pixels, a scalar.

    Returns:
      Scores in the shape of `shift`.
    """
    return -0.5 * jnp.square(spread) * jnp.square(shift - centre)


def gaussian(row_shift: jax.Array, column_shift: jax.Array, centre: jax.Array, spread: jax.Array) -> jax.Array:
    """Generalised quadratic encoding: `-1/2 (delta - mu)^T Sigma^-1 (delta - mu)`, `Sigma^-1 = S S^T`.

    Args:
      row_shift: rows of `delta` in pixels; broadcasts against `column_shift`.
      column_shift: columns of `delta` in pixels.
      centre: `mu`, `(2,)` pixels, row first.
      spread: `S`, `(2, 2)`, one over pixels.

    Returns:
      Scores in the broadcast shape of the two shifts.
    """
    row, column = row_shift - centre[0], column_shift - centre[1]
    # |S^T delta|^2 rather than delta^T (S S^T) delta: never positive, whatever the rounding.
    along = [row * spread[0, a] + column * spread[1, a] for a in range(2)]
    return -0.5 * (jnp.square(along[0]) + jnp.square(along[1]))


def learned_axis(table: jax.Array, weight: jax.Array) -> jax.Array:
    """One axis of the learned 2-D relative encoding: `w . e[delta]` for every shift.

    Args:
      table: `(2 M - 1, d)`, a vector a shift from `-(M - 1)` to `M - 1`.
      weight: `(d,)`, the head's weight vector for this axis.

    Returns:
      `(2 M - 1,)` scores; the score of shift `delta` stands at `delta + M - 1`.
    """
    return jnp.einsum("sd,d->s", table, weight)


def at_shifts(by_shift: jax.Array, shift: jax.Array) -> jax.Array:
    """Looks up values that are given a shift: `(2 M - 1, ...)` at integer shifts `(i, k)`.

    Returns:
      `(i, k, ...)`.
    """
    return by_shift[shift + (by_shift.shape[0] - 1) // 2]


def content(query: jax.Array, key: jax.Array) -> jax.Array:
    """Content scores `q . k / sqrt(D_h)` (first term of eq. 8, scaled).

    Args:
      query: `(q, d)`.
      key: `(p, d)`.

    Returns:
      `(q, p)` scores in float32 or wider.
    """
    scores = jnp.einsum("qd,pd->qp", query, key, preferred_element_type=at_least_float32(query.dtype))
    return scores * query.shape[-1] ** -0.5


def sinusoidal_positions(height: int, width: int, channels: int, dtype: jnp.dtype) -> jax.Array:
    """Fixed absolute positions in two dimensions: half of the channels for the row, half for the column.

    Within a half, channels `2 n` and `2 n + 1` are sine and cosine of `position / 10000^(2 n / half)`.

    Args:
      channels: a multiple of four.

    Returns:
      `(height, width, channels)`.
    """
    half = channels // 2

    def axis(size):
        frequency = 10000.0 ** (-2 * jnp.arange(half // 2, dtype=dtype) / half)
        angle = jnp.arange(size, dtype=dtype)[:, None] * frequency[None, :]
        return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(size, half)

    rows = jnp.broadcast_to(axis(height)[:, None], (height, width, half))
    columns = jnp.broadcast_to(axis(width)[None, :], (height, width, half))
    return jnp.concatenate([rows, columns], axis=-1)


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """The type of parameters, scores, softmax and loss where activations are of `dtype`."""
    return max(jnp.dtype(dtype), jnp.dtype(jnp.float32), key=lambda d: d.itemsize)
