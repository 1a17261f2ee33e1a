"""Which convolutions an encoding can express, whatever its parameters and however many heads.

A layer that is a convolution is one already at `X = 0` (rank.py), where attention is a pattern over shifts. So a
kernel `T` is within reach only if every column of its unfolding over shifts is a combination of patterns that the
encoding can make. What patterns span follows from what a score depends on: where it is a function of the distance, say,
patterns are equal at shifts of equal distance, and so are the slices of every kernel within reach.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import encoding_class
from attn_cnn_jax.models.encodings.lookhere import CORNERS

Shifts = Int[np.ndarray, "s 2"]


class Expressible(NamedTuple):
    """The kernels that an encoding can be.

    Attributes:
      kernels: in words.
      patterns: `shifts -> (s, n)`: what its patterns of attention span.
    """

    kernels: str
    patterns: Callable[[Shifts], Float[np.ndarray, "s n"]]

    def nearest(self, kernel: Float[AnyArray, "r t d o"]) -> Float[np.ndarray, "r t d o"]:
        """The kernel within reach that is nearest to one, in the Frobenius norm."""
        kernel = np.asarray(kernel, np.float64)
        left, singular, _ = np.linalg.svd(self.patterns(kernel_shifts(kernel.shape[:2])), full_matrices=False)
        basis, rows = left[:, singular > 1e-9 * singular[0]], kernel.reshape(-1, kernel.shape[2] * kernel.shape[3])
        return (basis @ (basis.T @ rows)).reshape(kernel.shape)


def equal_where(*values: Float[np.ndarray, " s"] | Int[np.ndarray, " s"]) -> Float[np.ndarray, "s n"]:
    """A column per different combination of values, with ones where it is."""
    _, group = np.unique(np.stack(values, axis=-1), axis=0, return_inverse=True)
    return np.eye(group.max() + 1)[group.ravel()]


def radial(shifts: Shifts) -> Float[np.ndarray, "s n"]:
    return equal_where(np.square(shifts).sum(axis=1))


def quadrants(shifts: Shifts) -> Float[np.ndarray, "s n"]:
    """Functions of the distance in one quadrant with its axes, or everywhere."""
    seen = [np.all(shifts * np.array(corner) >= 0, axis=1) for corner in CORNERS]
    return np.concatenate([radial(shifts) * each[:, None] for each in (*seen, np.ones(len(shifts)))], axis=1)


def up_to_sign(shifts: Shifts) -> Float[np.ndarray, "s n"]:
    """Functions that are equal at `delta` and `-delta`: the first coordinate that is not zero is made positive."""
    sign = np.where(shifts[:, 0] != 0, np.sign(shifts[:, 0]), np.sign(shifts[:, 1]))
    return equal_where(*(shifts * sign[:, None]).T)


ALL = Expressible("all", lambda shifts: np.eye(len(shifts)))
MIRRORED = Expressible("equal under a mirror of either axis", lambda shifts: equal_where(*np.abs(shifts).T))
KERNELS = {
    **dict.fromkeys(("quadratic", "quadratic_generalized", "learned", "relative", "pape", "rope", "rope_mixed"), ALL),
    **dict.fromkeys(("absolute_learned", "absolute_sinusoidal"), ALL),
    "alibi": Expressible("equal at equal distance", radial),
    "alibi_manhattan": Expressible("equal at equal distance", lambda shifts: equal_where(np.abs(shifts).sum(axis=1))),
    "kerple": MIRRORED,
    "fire": MIRRORED,
    "lookhere": Expressible("a function of distance per quadrant", quadrants),
    "pape_ri": Expressible("equal at opposite shifts", up_to_sign),
    "content": Expressible("one matrix for all pixels", lambda shifts: np.ones((len(shifts), 1))),
}


def expresses(encoding: str) -> Expressible:
    """Returns which kernels an encoding can express with enough heads, by its name in `config.model.encoding`.

    It is a limit from above that random parameters reach. Slopes of ALiBi and fields of LookHere are fixed: one layer
    of them has as many patterns as heads. RoPE needs biases of queries and keys, PaPE a channel that is constant, and
    absolute positions channels that the image leaves free.
    """
    encoding_class(encoding)
    if encoding not in KERNELS:
        raise UserError(f"encoding {encoding!r}: known are {', '.join(KERNELS)}")
    return KERNELS[encoding]
