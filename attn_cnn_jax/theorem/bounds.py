"""What a finite `alpha` costs in Theorem 1.

Head `h` has attention `exp(-alpha |delta - Delta_h|^2) / Z` on the pixel at shift
`delta`, and its centre `Delta_h` is a pixel of the padded image. On the infinite grid of pixels
`Z = theta^2`, `theta = sum_n exp(-alpha n^2)` over all integers, and the centre itself has `1 / Z`, so that the
others hold `1 - theta^-2` together. For n >= 1, `n^2 >= 3 n - 2` (equal at 1 and 2), and a geometric series gives

    theta <= 1 + u,   u = 2 exp(-alpha) / (1 - exp(-3 alpha)),
    mass on other pixels <= 1 - (1 + u)^-2 = 4 exp(-alpha) + O(exp(-2 alpha)).

A finite image has fewer other pixels, whatever the kernel's shifts. In 1-D the exponent is -1. The bound is close for
alpha >= 1 and says nothing more than "at most 1" as alpha -> 0.

From mass to output: `head_h(X)_q - X_(q + Delta_h) = sum_k p_k (X_k - X_(q + Delta_h))`, which no channel d can
bring above `mass * range_d`, the largest less the smallest value of the channel in the padded image. Through
the maps `W^(h)`, `|error_o| <= mass * sum_h sum_d |W^(h)_do| range_d`.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.theorem.kernels import ungrouped


def attention_bound(alpha: float, num_axes: int = 2) -> float:
    """Returns an upper bound of a head's attention on all pixels but the one at its centre: `1 - (1 + u)^-num_axes`.

    The sharpness `alpha`, in one over squared pixels, may be infinite; `num_axes` is 2 for images, 1 for sequences.
    """
    if not alpha > 0:
        raise UserError(f"alpha={alpha!r}: allowed is a number above 0")
    u = 2 * math.exp(-alpha) / -math.expm1(-3 * alpha)
    return -math.expm1(-num_axes * math.log1p(u))


def table_bound(sharpness: float, pixels: int) -> float:
    """Returns an upper bound of a head's attention outside its pattern, for `conv_to_attention(kernel, heads=...)`.

    Scores are the logarithms of a pattern that sums to one, and `-sharpness` on all other pixels, fewer than `pixels`,
    so that the mass is at most `m / (1 + m)`, `m = pixels exp(-sharpness)`.
    """
    if not sharpness > 0 or pixels < 1:
        raise UserError(f"sharpness={sharpness!r}, pixels={pixels!r}: allowed are a number above 0, an integer from 1")
    return 1 / (1 + math.exp(min(sharpness, 700)) / pixels) if math.isfinite(sharpness) else 0.0


def sharpness_for(tolerance: float, num_axes: int = 2) -> float:
    """Returns the smallest alpha whose `attention_bound` is at most `tolerance`, to the precision of a float."""
    return smallest_for(tolerance, lambda alpha: attention_bound(alpha, num_axes))


def smallest_for(tolerance: float, bound: Callable[[float], float]) -> float:
    """Returns the smallest argument of a falling bound for which it is at most `tolerance`."""
    if not 0 < tolerance < 1:
        raise UserError(f"tolerance={tolerance!r}: allowed is a number above 0 and below 1")
    low, high = 0.0, 1.0
    while bound(high) > tolerance:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if bound(middle) > tolerance else (low, middle)
    return high


def alpha_exact(dtype: DTypeLike, num_axes: int = 2) -> float:
    """Returns an alpha from which attention is hard in a floating-point type: the centre's probability is exactly 1.

    All other keys together have at most a quarter of the distance from 1 to the next larger number, so that no order of
    summation, nor an exponential that is rounded up, moves the softmax's denominator away from 1. For float32 it is
    18.72; the paper names 46. What is left on other keys, below exp(-alpha), changes an average no more than rounding.
    """
    quarter = float(jnp.finfo(dtype).eps) / 4
    return sharpness_for(quarter / (1 + quarter), num_axes)  # as a share of all keys; `quarter` is one of the centre


def output_bound(
    kernel: AnyArray,
    x: Float[AnyArray, "... d"],
    alpha: float | None = None,
    *,
    mass: float | None = None,
    groups: int = 1,
) -> Float[np.ndarray, " o"]:
    """Returns an upper bound of what `conv_to_attention(kernel, sharpness=alpha)(x)` differs by from the convolution.

    It holds for every pixel of the output, without rounding errors. The kernel is `(K_r, K_c, D_in, D_out)`, or
    `(K, D_in, D_out)` of a 1-D convolution; of a convolution in `groups`, `D_in` are the channels of one. Zeros count
    as part of the input, as padding puts them there. For other constructions give `mass`, `table_bound` or
    `rope_bound`, in place of `alpha`. With few heads the kernel still is what counts, not the value maps: all heads
    look outside equally, and their value maps sum to what the slices do. UserError for an input of other channels.
    """
    if (alpha is None) == (mass is None):
        raise UserError("output_bound needs either alpha or mass")
    kernel, x = ungrouped(np.asarray(kernel, np.float64), groups), np.asarray(x, np.float64)
    if x.shape[-1:] != kernel.shape[-2:-1]:
        raise UserError(f"an input of shape {x.shape}: this kernel reads {kernel.shape[-2]} channels, the last axis")
    x = x.reshape(-1, x.shape[-1])
    value_range = x.max(axis=0, initial=0) - x.min(axis=0, initial=0)
    weight = np.abs(kernel).reshape(-1, *kernel.shape[-2:]).sum(axis=0)
    share = attention_bound(alpha, kernel.ndim - 2) if alpha is not None else mass
    return share * (value_range @ weight)
