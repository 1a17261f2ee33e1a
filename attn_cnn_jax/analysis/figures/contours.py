"""Contours that hold a share of a head's attention, from its probabilities."""

import numpy as np
from scipy import interpolate, ndimage

from attn_cnn_jax.models.attention import moments

FINENESS = 32  # points along a pixel's side
FLAT = 1e-6  # relative differences below this are rounding
RISE = 1.0  # nats at most above a pixel and its neighbours, where rough attention is carried to the border
FLOOR = -16.0  # nats below the largest probability: what is less likely does not show


def density(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns attention as a smooth density on the picture.

    Akima's cubics through the logarithms at the pixels' centres: exact for a Gaussian, also in the half
    pixel towards the border, and local, so that rough attention elsewhere does not ring. Zero outside the
    picture, so that contours close along its border.

    Args:
      probabilities: `(k, l)` of one query pixel.

    Returns:
      Rows `(m,)` and columns `(n,)` in pixels (a pixel's centre at its index), and the density `(m, n)`,
      per square pixel, with a border of zeros.
    """
    probabilities = moments.normalised(probabilities)
    logs = np.log(np.maximum(probabilities / probabilities.max(), np.exp(FLOOR)))
    highest = ndimage.maximum_filter(logs, 3) + RISE
    edges = []
    for axis, size in enumerate(probabilities.shape):
        points = (np.arange(size * FINENESS) + 0.5) / FINENESS - 0.5
        if size > 1:
            logs = interpolate.Akima1DInterpolator(np.arange(size), logs, axis=axis, extrapolate=True)(points)
        else:
            logs = np.repeat(logs, FINENESS, axis=axis)
        edges.append(np.concatenate([[-0.5], points, [size - 0.5]]))
    logs = np.minimum(logs, np.kron(highest, np.ones((FINENESS, FINENESS))))
    values = np.exp(logs - logs.max())
    values *= FINENESS**2 / values.sum()
    return *edges, np.pad(values, 1)


def level(density: np.ndarray, share: float) -> float | None:
    """Returns the density above which lies this share of the mass; None where attention is uniform."""
    values = np.sort(density[1:-1, 1:-1], axis=None)[::-1]
    if values[0] - values[-1] <= FLAT * values[0]:
        return None
    mass = np.cumsum(values)
    return float(np.interp(share, mass / mass[-1], values))


def pieces(density: np.ndarray, level: float) -> int:
    """Returns how many closed lines separate what lies above a density from the rest: its regions and their holes.

    What is smaller than a quarter of a pixel does not count.
    """
    return _regions(density > level) + _regions(density <= level) - 1  # around the picture all is below


def _regions(inside: np.ndarray) -> int:
    labels, _ = ndimage.label(inside)  # pyright: ignore[reportGeneralTypeIssues]
    return int(np.sum(np.bincount(labels.ravel())[1:] >= FINENESS**2 / 4))
