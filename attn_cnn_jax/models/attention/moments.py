"""What attention looks like as a distribution over key pixels: moments, entropy, distance.

NumPy in float64, the same for every encoding. Functions take `(..., k, l)` probabilities of one query pixel each, which
sum to one up to rounding; the axes before are kept. Lengths are in pixels after the down-sampling, rows first.
"""

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import AnyArray

Probabilities = Float[AnyArray, "... k l"]


def normalised(probabilities: Probabilities) -> np.ndarray:
    """`(..., k, l)` in float64 that sums to one, without the rounding of float32 or bfloat16."""
    probabilities = np.asarray(probabilities, np.float64)
    return probabilities / probabilities.sum(axis=(-2, -1), keepdims=True)


def centre_of_mass(probabilities: Probabilities) -> np.ndarray:
    """Mean key pixel: `(..., k, l) -> (..., 2)`, row first; subtract the query to have the mean shift."""
    probabilities = normalised(probabilities)
    rows, columns = (np.arange(size, dtype=np.float64) for size in probabilities.shape[-2:])
    return np.stack([probabilities.sum(axis=-1) @ rows, probabilities.sum(axis=-2) @ columns], axis=-1)


def covariance(probabilities: Probabilities) -> np.ndarray:
    """Covariance of the key pixel: `(..., k, l) -> (..., 2, 2)` square pixels."""
    probabilities = normalised(probabilities)
    centre = centre_of_mass(probabilities)
    # Around the centre rather than E[xx] - E[x]E[x]: a one-pixel attention then has exactly no spread.
    rows, columns = (np.arange(size) - centre[..., axis, None] for axis, size in enumerate(probabilities.shape[-2:]))
    row_row = np.sum(probabilities.sum(axis=-1) * rows**2, axis=-1)
    column_column = np.sum(probabilities.sum(axis=-2) * columns**2, axis=-1)
    row_column = np.einsum("...kl,...k,...l->...", probabilities, rows, columns)
    return np.stack([np.stack([row_row, row_column], -1), np.stack([row_column, column_column], -1)], axis=-2)


def entropy(probabilities: Probabilities) -> np.ndarray | np.floating:
    """Entropy in nats: `(..., k, l) -> (...)`; 0 for one pixel, `log(H W)` for uniform attention."""
    probabilities = normalised(probabilities)
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return -np.sum(probabilities * logs, axis=(-2, -1)) + 0.0


def distance(probabilities: Probabilities, query: tuple[int, int]) -> np.ndarray | np.floating:
    """Mean distance `E |key - query|` in pixels (the non-locality of a head): `(..., k, l) -> (...)`."""
    height, width = probabilities.shape[-2:]
    lengths = np.hypot(np.arange(height)[:, None] - query[0], np.arange(width)[None, :] - query[1])
    return np.einsum("...kl,kl->...", normalised(probabilities), lengths)


def main_axes(covariances: Float[AnyArray, "... 2 2"]) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations `(..., 2)` in pixels along main axes, the larger first; its direction, a unit vector."""
    values, vectors = np.linalg.eigh(covariances)
    return np.sqrt(np.maximum(values[..., ::-1], 0)), vectors[..., :, 1]


def covariance_of_spread(spread: Float[AnyArray, "h ..."]) -> np.ndarray:
    """Covariance `(h, 2, 2)` of a quadratic encoding's Gaussian without borders; infinite where a spread is singular.

    Spreads are `s` `(h,)`, or `S` `(h, 2, 2)` with `Sigma^-1 = S S^T`, in one over pixels.
    """
    spread = np.asarray(spread, np.float64)
    factors = spread[:, None, None] * np.eye(2) if spread.ndim == 1 else spread
    result = np.full(factors.shape, np.inf)
    regular = np.abs(np.linalg.det(factors)) > 0
    inverse = np.linalg.inv(factors[regular])
    result[regular] = inverse.swapaxes(-1, -2) @ inverse
    return result
