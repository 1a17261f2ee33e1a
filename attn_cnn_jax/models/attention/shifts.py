"""Shifts between pixels: `delta = key - query`, rows first."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def relative_positions(queries: jax.Array, size: int) -> jax.Array:
    """Shift from every query to every key of one axis.

    Args:
      queries: positions of the query pixels on this axis, `(i,)` integers.
      size: number of pixels on this axis.

    Returns:
      `(i, k)` integers, `k - i`, from `-(size - 1)` to `size - 1`.
    """
    return jnp.arange(size)[None, :] - queries[:, None]


def kernel_shifts(kernel_size: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> np.ndarray:
    """The shifts that a convolution kernel reads, row by row (the bijection f of Lemma 1).

    An even size has its extra shift on the positive side, as XLA's `SAME` padding does.

    Args:
      kernel_size: rows and columns of the kernel.
      dilation: distance between two neighbouring shifts, in pixels.

    Returns:
      `(rows * columns, 2)` integers; shift `h` belongs to kernel entry `divmod(h, columns)`.
    """
    axes = [dilation[a] * (np.arange(kernel_size[a]) - (kernel_size[a] - 1) // 2) for a in range(2)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def grid_positions(
    kernel_size: tuple[int, int], dilation: tuple[int, int], sharpness: float
) -> tuple[np.ndarray, np.ndarray]:
    """Quadratic heads that attend as a kernel reads: one a shift of `kernel_shifts`, all equally sharp.

    Args:
      sharpness: `alpha = s^2 / 2`, in one over squared pixels.

    Returns:
      Centres `Delta_h`, `(h, 2)` pixels, and spreads `s_h`, `(h,)` one over pixels; float64.
    """
    centre = kernel_shifts(kernel_size, dilation).astype(np.float64)
    return centre, np.full(len(centre), math.sqrt(2 * sharpness))
