"""Contours that hold a share of a head's attention, from its probabilities."""

import numpy as np
from scipy import ndimage

from attn_cnn_jax.models import moments

FINENESS = 16  # points along a pixel's side
FLAT = 1e-6  # relative differences below this are rounding


def density(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention as a smooth density on the picture.

    Cubic splines through the probabilities at the pixels' centres: they keep centre and covariance, as
    linear interpolation would not. Zero outside the picture, so that contours close along its border.

    Args:
      probabilities: `(k, l)` of one query pixel.

    Returns:
      Rows `(m,)` and columns `(n,)` in pixels (a pixel's centre at its index), and the density `(m, n)`,
      one over square pixels, with a border of zeros.
    """
    probabilities = moments.normalised(probabilities)
    axes = [(np.arange(size * FINENESS) + 0.5) / FINENESS - 0.5 for size in probabilities.shape]
    # "reflect" mirrors at the pixels' edges: what the splines carry over the border comes back.
    values = ndimage.map_coordinates(probabilities, np.meshgrid(*axes, indexing="ij"), order=3, mode="reflect")
    values = np.maximum(values, 0)
    values *= FINENESS**2 / values.sum()
    edges = [np.concatenate([[-0.5], axis, [size - 0.5]]) for axis, size in zip(axes, probabilities.shape, strict=True)]
    return *edges, np.pad(values, 1)


def level(density: np.ndarray, share: float) -> float | None:
    """The density above which lies this share of the mass; None where attention is uniform, without contours."""
    values = np.sort(density[1:-1, 1:-1], axis=None)[::-1]
    if values[0] - values[-1] <= FLAT * values[0]:
        return None
    mass = np.cumsum(values)
    return float(np.interp(share, mass / mass[-1], values))
