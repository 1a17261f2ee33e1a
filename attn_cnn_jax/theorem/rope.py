"""Rotary positions express every convolution: queries and keys that are constants, each turned by its pixel.

With `m` frequencies `w, 2 w .. m w` per axis, `w = pi / N` for an axis of N pixels, and constant queries whose angle is
that of the head's shift `Delta`, `score_h(delta) = beta sum_axes sum_j cos(j w (delta - Delta_h))`: largest at
`Delta_h` and, as no shift inside the image reaches `2 N`, smaller at every other. On one axis, `d` pixels from the
centre, the score falls by `beta g(d)`, `g(d) = sum_j (1 - cos(j w d))`, so that, as in bounds.py,

    mass on other pixels <= 1 - prod_axes 1 / (1 + u),   u = 2 sum_(0 < d < N) exp(-beta g(d)).

The four neighbours hold `4 exp(-beta g(1))` of it: up to `m = N / 2`, `beta = ln(4 / eps) / g(1)` is enough for a small
`eps`. At 1e-4 with 16 pixels it is 551, 111, 19 and 3.1 for 1, 2, 4 and 8 frequencies.
"""

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import Rope
from attn_cnn_jax.theorem.bounds import smallest_for


def rope_bound(beta: float, grid: Grid, pairs: int = 1) -> float:
    """Returns an upper bound of a head's attention on all pixels but the one at its centre, for `encoding="rope"`.

    Args:
      beta: strength of the scores.
      grid: rows and columns of the padded image, at most.
      pairs: frequencies per axis.
    """
    if not beta > 0 or pairs < 1:
        raise UserError(f"beta={beta!r}, pairs={pairs!r}: allowed are a number above 0 and an integer from 1")
    logarithm = 0.0
    for size in grid:
        distance, frequency = np.arange(1, size)[:, None], np.pi / size * np.arange(1, pairs + 1)[None]
        fall = (1 - np.cos(frequency * distance)).sum(axis=1)
        logarithm += math.log1p(2 * float(np.exp(-beta * fall).sum()))
    return -math.expm1(-logarithm)


def rope_sharpness(tolerance: float, grid: Grid, pairs: int = 1) -> float:
    """Returns the smallest beta whose `rope_bound` is at most `tolerance`, to the precision of a float."""
    return smallest_for(tolerance, lambda beta: rope_bound(beta, grid, pairs))


def rope_encoding(
    shifts: Int[np.ndarray, "h 2"], channels: int, grid: Grid, *, beta: float, pairs: int, dtype: DTypeLike
) -> Rope:
    """Axial RoPE whose head `h` attends to shift `h`, in images of so many channels, up to `grid` pixels."""
    heads, size = len(shifts), 4 * pairs
    encoding = Rope(heads, channels, size, dtype=dtype, rngs=nnx.Rngs(0))
    rows, columns = (np.pi / pixels * np.arange(1, pairs + 1) for pixels in grid)
    frequency = np.concatenate([np.stack([rows, 0 * rows], -1), np.stack([0 * columns, columns], -1)])
    angle = shifts @ frequency.T
    query, key = (np.stack([np.cos(x), np.sin(x)], -1).reshape(-1) for x in (angle, 0 * angle))
    strength = math.sqrt(beta * math.sqrt(size))  # of both; scores are divided by the root of the head size
    for layer, bias in ((encoding.query, query), (encoding.key, key)):
        assert layer.bias is not None
        layer.kernel[...] = jnp.zeros_like(layer.kernel[...])
        layer.bias[...] = jnp.asarray(strength * bias, layer.bias.dtype)
    each = np.broadcast_to(frequency, (heads, *frequency.shape))
    encoding.frequency[...] = jnp.asarray(each, encoding.frequency.dtype)
    return encoding
