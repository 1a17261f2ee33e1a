"""Linear maps of a lower rank: the best that heads smaller than their channels can do."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import AnyArray


class LowRank(NamedTuple):
    """Value and output maps of heads smaller than the channels, and what they cannot express.

    Attributes:
      value: `W_val`, `(h, d, c)`.
      output: `W_out`, `(h, c, o)`.
      discarded: singular values left out, largest first, `(h, min(D_in, D_out) - D_h)`. For head `h`, the first
        is the error of `W_val W_out` in the spectral norm, the root of the sum of squares in Frobenius'.
    """

    value: np.ndarray
    output: np.ndarray
    discarded: np.ndarray


def truncate(kernel: Float[AnyArray, "... d o"], head_dim: int) -> LowRank:
    """Returns the best maps of rank `head_dim` for every slice of a kernel `(..., d, o)` (Eckart and Young)."""
    slices = np.asarray(kernel, np.float64).reshape(-1, *np.shape(kernel)[-2:])
    left, singular, right = np.linalg.svd(slices, full_matrices=False)
    scale = np.sqrt(singular[:, :head_dim])
    value = left[:, :, :head_dim] * scale[:, None, :]
    output = scale[:, :, None] * right[:, :head_dim]
    return LowRank(value, output, singular[:, head_dim:])
