"""Shifts between pixels: `delta = key - query`, rows first."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


def relative_positions(queries: Int[Array, " i"], size: int) -> Int[Array, "i k"]:
    """Shift `k - i` from each of these queries to each of the `size` keys of one axis, in pixels."""
    return jnp.arange(size)[None, :] - queries[:, None]


def kernel_shifts(kernel_size: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Int[np.ndarray, "shifts 2"]:
    """The shifts that a kernel reads, row by row, in pixels: `h` is that of entry `divmod(h, columns)` (f of Lemma 1).

    An even size has its extra shift on the positive side, as XLA's `SAME` padding does.
    """
    axes = [dilation[a] * (np.arange(kernel_size[a]) - (kernel_size[a] - 1) // 2) for a in range(2)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
