"""Generalised quadratic encoding: every head attends to a Gaussian of any shape."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings.quadratic import SMALLEST_PRECISION, CentredEncoding
from attn_cnn_jax.models.encodings.registry import register

LARGEST_CONDITION_NUMBER = 1000.0  # of Sigma^-1; above it the release calls a head degenerate


@register("quadratic_generalized")
class GeneralizedQuadratic(CentredEncoding):
    """Generalised quadratic encoding: `-1/2 (delta - mu_h)^T Sigma_h^-1 (delta - mu_h)`, `Sigma^-1 = S S^T`.

    Attributes:
      centre: `mu`, `(h, 2)` pixels, row first; starts as N(0, 2^2).
      spread: `S`, `(h, 2, 2)` one over pixels; starts as I + N(0, 0.01^2).
    """

    circle = np.eye(2)
    penalised: ClassVar[bool] = True

    def position_terms(
        self, height: int, width: int, query_rows: Int[Array, " i"]
    ) -> dict[str, Float[Array, "h i j k l"]]:
        centre, spread = self.centre[...], self.spread[...]
        row = relative_positions(query_rows, height).astype(centre.dtype)[:, None, :, None]
        column = relative_positions(jnp.arange(width), width).astype(centre.dtype)[None, :, None, :]
        return {"position": jax.vmap(scores.gaussian, in_axes=(None, None, 0, 0))(row, column, centre, spread)}

    def measures(self) -> dict[str, Float[np.ndarray, " h"]]:
        values = np.linalg.svd(np.asarray(self.spread[...], np.float64), compute_uv=False) ** 2
        largest, smallest = values[:, 0], values[:, -1]
        condition = np.divide(largest, smallest, out=np.full_like(largest, np.inf), where=smallest > 0)
        return {"largest eigenvalue": largest, "condition number": condition}

    @staticmethod
    def reason(spread: Float[np.ndarray, "2 2"]) -> str:
        """Returns "uniform" or "a line", with the number, by the eigenvalues of `Sigma^-1` (release)."""
        values = np.linalg.svd(spread, compute_uv=False) ** 2
        if values[0] < SMALLEST_PRECISION:
            return f"uniform: largest eigenvalue {values[0]:.1e} < 1e-05"
        # Multiplied out, so that a singular spread has no division by zero.
        if values[0] > LARGEST_CONDITION_NUMBER * values[-1]:
            number = values[0] / values[-1] if values[-1] > 0 else np.inf
            return f"a line: condition number {number:.0f} > {LARGEST_CONDITION_NUMBER:.0f}"
        return ""


def precision_eigenvalues(
    spread: Float[Array, "*h 2 2"],
) -> tuple[Float[Array, " *h"], Float[Array, " *h"]]:
    """Returns the smallest and the largest eigenvalue of `Sigma^-1 = S S^T`, one over square pixels.

    In closed form, with a gradient everywhere but where a spread is singular.
    """
    a = jnp.square(spread).sum(axis=-1)  # diagonal of S S^T
    off_diagonal = jnp.sum(spread[..., 0, :] * spread[..., 1, :], axis=-1)
    trace, squared_gap = a[..., 0] + a[..., 1], jnp.square(a[..., 0] - a[..., 1]) + 4 * jnp.square(off_diagonal)
    # At a circle the gradient of the gap is 0/0, though that of the squared ratio of eigenvalues is 0.
    is_circle = squared_gap == 0
    gap = jnp.where(is_circle, 0, jnp.sqrt(jnp.where(is_circle, 1, squared_gap)))
    largest = (trace + gap) / 2
    determinant = jnp.square(spread[..., 0, 0] * spread[..., 1, 1] - spread[..., 0, 1] * spread[..., 1, 0])
    # det / largest: trace - gap would lose the digits of a small eigenvalue.
    return jnp.where(largest > 0, determinant / jnp.where(largest > 0, largest, 1), 0), largest


def covariance_penalty(parameters: Arrays) -> Float[Array, ""]:
    """Returns the mean over the heads of all layers of `(condition number of Sigma^-1 - 1)^2`; 0 for circles."""
    spreads = [array for name, array in parameters.items() if name.endswith(".position.spread")]
    smallest, largest = precision_eigenvalues(jnp.concatenate(spreads))
    return jnp.square((largest - smallest) / smallest).mean()
