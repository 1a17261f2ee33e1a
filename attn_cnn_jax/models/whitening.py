"""An embedding that whitens the patches of a data set, makes them uncorrelated and of variance 1, and rotates them.

Where there are more channels than values of a patch they share this variance: its mean is at most values over channels.
"""

import numpy as np
from jaxtyping import Float

RIDGE = 0.01  # added to the variance of every direction, over the mean variance: what is nearly constant stays small


def whitening(
    kernel: Float[np.ndarray, "f d"], patches: Float[np.ndarray, "n f"]
) -> tuple[Float[np.ndarray, "f d"], Float[np.ndarray, " d"]]:
    """Returns the weight and bias of a linear map that whitens patches.

    With the covariance C = E diag(v) E^T of the patches it is x -> (x - mean) E diag((v + r)^(-1/2)) Q, where Q has
    orthonormal rows or, for d < f, orthonormal columns, nearest to the old weight: a rotation drawn with the network.

    Args:
      kernel: the weight as it was drawn.
      patches: normalised values, a row per patch.
    """
    mean = patches.mean(axis=0)
    variances, directions = np.linalg.eigh(np.atleast_2d(np.cov(patches, rowvar=False)).astype(np.float64))
    left, _, right = np.linalg.svd(kernel, full_matrices=False)
    scaled = directions / np.sqrt(np.maximum(variances, 0) + RIDGE * variances.mean())
    weight = scaled @ (left @ right)
    return weight.astype(kernel.dtype), (-mean @ weight).astype(kernel.dtype)
