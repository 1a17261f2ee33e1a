"""Heads that learned nothing, and networks without them: which they are, removing, resetting, fixing them.

Degenerate, by the criteria of the authors' release: an isotropic head whose `s^2` is below 1e-5 attends
uniformly; so does a generalised one whose largest eigenvalue of `Sigma^-1` is, and one whose condition
number is above 1000 attends to a line.

Works on a network's named arrays (variables.py). Heads are counted from 0.
"""

import re
from collections.abc import Collection, Mapping

import jax.numpy as jnp
import numpy as np

from attn_cnn_jax.models.variables import Arrays

SMALLEST_PRECISION = 1e-5  # one over square pixels
LARGEST_CONDITION_NUMBER = 1000.0

# Which axis of a layer's parameter runs over heads: alone, or together with the channels of a head.
HEAD_AXIS = {
    "gate": 0,
    "position.centre": 0,
    "position.spread": 0,
    "position.row_weight": 0,
    "position.column_weight": 0,
    "position.position_key": 0,
    "position.content_bias": 0,
    "position.position_bias": 0,
    "position.query.kernel": 1,
    "position.key.kernel": 1,
    "content.query.kernel": 1,
    "content.query.bias": 0,
    "content.key.kernel": 1,
    "content.key.bias": 0,
    "value.kernel": 1,
    "output.kernel": 0,
}
POSITIONS = ("position.centre", "position.spread", "position.row_weight", "position.column_weight")
POSITION_TABLES = ("position.tables.row", "position.tables.column")
VALUES = ("value.kernel", "output.kernel")
_NAME = re.compile(r"blocks\.(\d+)\.attention\.(.+)")

Heads = Mapping[int, Collection[int]]  # of some layers, by the layer's number


def precision_eigenvalues(spread: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Eigenvalues of `Sigma^-1 = S S^T`: `(..., 2, 2)` to smallest and largest, `(...)` each, one over square pixels.

    In closed form, with a gradient everywhere but where a spread is singular.
    """
    a = jnp.square(spread).sum(axis=-1)  # diagonal of S S^T
    off_diagonal = jnp.sum(spread[..., 0, :] * spread[..., 1, :], axis=-1)
    trace, squared_gap = a[..., 0] + a[..., 1], jnp.square(a[..., 0] - a[..., 1]) + 4 * jnp.square(off_diagonal)
    # The gap's gradient at a circle is 0/0, though that of the eigenvalues' ratio squared is 0.
    is_circle = squared_gap == 0
    gap = jnp.where(is_circle, 0, jnp.sqrt(jnp.where(is_circle, 1, squared_gap)))
    largest = (trace + gap) / 2
    determinant = jnp.square(spread[..., 0, 0] * spread[..., 1, 1] - spread[..., 0, 1] * spread[..., 1, 0])
    # det / largest: trace - gap would lose the digits of a small eigenvalue.
    return jnp.where(largest > 0, determinant / jnp.where(largest > 0, largest, 1), 0), largest


def covariance_penalty(parameters: Arrays) -> jnp.ndarray:
    """Mean over all generalised heads of `(condition number of Sigma^-1 - 1)^2`: a scalar; 0 for circles."""
    spreads = [array for name, array in parameters.items() if name.endswith(".position.spread")]
    smallest, largest = precision_eigenvalues(jnp.concatenate(spreads))
    return jnp.square((largest - smallest) / smallest).mean()


def degenerate_heads(parameters: Arrays) -> dict[int, dict[int, str]]:
    """Degenerate heads of a network with a quadratic encoding.

    Args:
      parameters: by name; spreads `(h,)`, generalised `(h, 2, 2)`, in one over pixels.

    Returns:
      By layer, by head, why; layers without any are left out.
    """
    found: dict[int, dict[int, str]] = {}
    for name, array in parameters.items():
        match = _NAME.fullmatch(name)
        if match and match[2] == "position.spread":
            reasons = map(degenerate, np.asarray(array, np.float64))
            if bad := {head: reason for head, reason in enumerate(reasons) if reason}:
                found[int(match[1])] = bad
    return found


def degenerate(spread: np.ndarray) -> str:
    """Why one head with this spread (`s`, or `S` `(2, 2)`) is degenerate; "" if it isn't."""
    values = np.array([spread**2]) if spread.ndim == 0 else np.linalg.svd(spread, compute_uv=False) ** 2
    if values[0] < SMALLEST_PRECISION:
        return f"uniform: {'s^2' if spread.ndim == 0 else 'largest eigenvalue'} {values[0]:.1e} < 1e-05"
    # Multiplied out, so that a singular spread has no division by zero.
    if values[0] > LARGEST_CONDITION_NUMBER * values[-1]:
        number = values[0] / values[-1] if values[-1] > 0 else np.inf
        return f"a line: condition number {number:.0f} > {LARGEST_CONDITION_NUMBER:.0f}"
    return ""


def prune(parameters: Arrays, num_heads: tuple[int, ...], heads: Heads) -> Arrays:
    """The parameters without some heads; their network computes what it did with these heads' values zero.

    Args:
      parameters: of a network with `num_heads` heads, one number a layer.
      heads: the heads to remove.
    """

    def remaining(layer, array, axis):
        kept = [head for head in range(num_heads[layer]) if head not in heads.get(layer, ())]
        apart = by_head(jnp.asarray(array), axis, num_heads[layer])
        return merged(jnp.take(apart, jnp.array(kept), axis=axis), axis)

    return {name: _change(name, array, remaining) for name, array in parameters.items()}


def reset(parameters: Arrays, fresh: Arrays, num_heads: tuple[int, ...], heads: Heads) -> Arrays:
    """The parameters with some heads as in `fresh`, a network of the same shape just created."""

    def changed(layer, array, axis, name):
        chosen = head_mask(array, axis, num_heads[layer], heads.get(layer, ()))
        return jnp.where(chosen, fresh[name], array)

    return {name: _change(name, array, lambda *a, name=name: changed(*a, name)) for name, array in parameters.items()}


def fixed(
    parameters: Arrays, num_heads: tuple[int, ...], free: Heads, *, positions: bool, values: bool
) -> dict[str, np.ndarray]:
    """Which entries training must leave alone to keep the positions or value maps of all heads but `free`.

    Returns:
      By the parameter's name a boolean array `(1, ..., h d, ..., 1)` that broadcasts to it, only where any entry
      is fixed.
    """
    names = (POSITIONS if positions else ()) + (VALUES if values else ())
    masks = {}
    for name, array in parameters.items():
        match = _NAME.fullmatch(name)
        if match and match[2] in names:
            layer = int(match[1])
            masks[name] = ~head_mask(array, HEAD_AXIS[match[2]], num_heads[layer], free.get(layer, ()))
        elif match and positions and match[2] in POSITION_TABLES:
            masks[name] = np.ones((1,) * array.ndim, bool)  # all heads of a layer read its tables
    return {name: mask for name, mask in masks.items() if mask.any()}


def by_head(array: jnp.ndarray, axis: int, num_heads: int) -> jnp.ndarray:
    """Splits the axis of heads and their channels in two, heads first: `(..., h d, ...) -> (..., h, d, ...)`."""
    return array.reshape(*array.shape[:axis], num_heads, -1, *array.shape[axis + 1 :])


def merged(array: jnp.ndarray, axis: int) -> jnp.ndarray:
    """Joins the axis of heads and the axis of their channels behind it: `(..., h, d, ...) -> (..., h d, ...)`."""
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def head_mask(array: jnp.ndarray, axis: int, num_heads: int, heads: Collection[int]) -> np.ndarray:
    """True at the entries of some heads: `(1, ..., h d, ..., 1)`, which broadcasts to `array`."""
    size = array.shape[axis] // num_heads
    along = np.repeat(np.isin(np.arange(num_heads), list(heads)), size)
    return along.reshape(*(-1 if a == axis else 1 for a in range(array.ndim)))


def _change(name, array, function):
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in HEAD_AXIS:
        return array
    return function(int(match[1]), array, HEAD_AXIS[match[2]])
