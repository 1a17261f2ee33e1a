"""Shifts between pixels: `delta = key - query`, rows first."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def relative_positions(queries: Int[Array, " i"], size: int) -> Int[Array, "i k"]:
    """Shift `k - i` from every query to every key of one axis, in pixels.

    Args:
      queries: positions of the query pixels on this axis.
      size: number of pixels on this axis.
    """
    return jnp.arange(size)[None, :] - queries[:, None]


def kernel_shifts(kernel_size: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Int[np.ndarray, "shifts 2"]:
    """Returns the shifts that a convolution kernel reads, row by row (the bijection f of Lemma 1).

    An even size has its extra shift on the positive side, as XLA's `SAME` padding does.

    Args:
      kernel_size: rows and columns of the kernel.
      dilation: distance between two neighbouring shifts, in pixels.

    Returns:
      Row and column of every shift, in pixels; shift `h` belongs to kernel entry `divmod(h, columns)`.
    """
    axes = [dilation[a] * (np.arange(kernel_size[a]) - (kernel_size[a] - 1) // 2) for a in range(2)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def grid_positions(
    kernel_size: tuple[int, int], dilation: tuple[int, int], sharpness: float
) -> tuple[Float[np.ndarray, "h 2"], Float[np.ndarray, " h"]]:
    """Quadratic heads that attend as a kernel reads: one per shift of `kernel_shifts`, all equally sharp.

    Args:
      sharpness: `alpha = s^2 / 2`, in one over squared pixels.

    Returns:
      Centres `Delta_h`, `(h, 2)` pixels, and spreads `s_h`, `(h,)` one over pixels; float64.
    """
    centre = kernel_shifts(kernel_size, dilation).astype(np.float64)
    return centre, np.full(len(centre), math.sqrt(2 * sharpness))
