"""Generalised quadratic encoding: every head attends to a Gaussian of any shape."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.quadratic import CentredEncoding
from attn_cnn_jax.models.encodings.registry import register


@register("quadratic_generalized")
class GeneralizedQuadratic(CentredEncoding):
    """Generalised quadratic encoding: `-1/2 (delta - mu_h)^T Sigma_h^-1 (delta - mu_h)`, `Sigma^-1 = S S^T`.

    Attributes:
      centre: `mu`, `(h, 2)` pixels, row first; starts as N(0, 2^2).
      spread: `S`, `(h, 2, 2)` one over pixels; starts as I + N(0, 0.01^2).
    """

    circle = np.eye(2)

    def position_terms(
        self, height: int, width: int, query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "h i j k l"]]:
        centre, spread = self.centre[...], self.spread[...]
        row = relative_positions(query_rows, height).astype(centre.dtype)[:, None, :, None]
        column = relative_positions(jnp.arange(width), width).astype(centre.dtype)[None, :, None, :]
        return {"position": jax.vmap(scores.gaussian, in_axes=(None, None, 0, 0))(row, column, centre, spread)}


def covariance_penalty(parameters: Arrays) -> Float[Array, ""]:
    """Returns the mean over the heads of all layers of `(condition number of Sigma^-1 - 1)^2`; 0 for circles.

    In closed form, with a gradient everywhere but where a spread is singular.
    """
    spread = jnp.concatenate([array for name, array in parameters.items() if name.endswith(".position.spread")])
    diagonal = jnp.square(spread).sum(axis=-1)  # of S S^T
    off_diagonal = jnp.sum(spread[..., 0, :] * spread[..., 1, :], axis=-1)
    squared_gap = jnp.square(diagonal[..., 0] - diagonal[..., 1]) + 4 * jnp.square(off_diagonal)
    # At a circle the gradient of the gap between the eigenvalues is 0/0, though that of the penalty is 0.
    is_circle = squared_gap == 0
    gap = jnp.where(is_circle, 0, jnp.sqrt(jnp.where(is_circle, 1, squared_gap)))
    largest = (diagonal.sum(axis=-1) + gap) / 2
    # det / largest: trace - gap would lose the digits of a small eigenvalue.
    smallest = jnp.square(spread[..., 0, 0] * spread[..., 1, 1] - spread[..., 0, 1] * spread[..., 1, 0]) / largest
    return jnp.square(gap / smallest).mean()
