"""Scores of positions as few numbers: what the page computes attention from."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings.base import Encoding, GeneralizedQuadratic, Quadratic


def position_parameters(attention: SelfAttention, grid: tuple[int, int]) -> dict | None:
    """The parameters behind a layer's position scores.

    Args:
      attention: a layer.
      grid: rows and columns of pixels (height, width) that it attends over.

    Returns:
      None where scores know no position of their own, else a dictionary that is ready for JSON: `term`, the
      name of the score term; `kind`; and by kind, nested lists:
      "quadratic": `centre` (h, 2), `spread` (h,);
      "gaussian": `centre` (h, 2), `spread` (h, 2, 2);
      "axes": `row` (h, 2 height - 1) and `column` (h, 2 width - 1), scores that add, by shift from the
      most negative one.
    """
    encoding = attention.position
    if isinstance(encoding, Quadratic | GeneralizedQuadratic):
        kind = "quadratic" if isinstance(encoding, Quadratic) else "gaussian"
        return {"term": "position", "kind": kind, **numbers(centre=encoding.centre, spread=encoding.spread)}
    terms = axis_scores_by_shift(encoding, *grid)
    if not terms:
        return None
    ((term, (row, column)),) = terms.items()
    return {"term": term, "kind": "axes", **numbers(row=row, column=column)}


def axis_scores_by_shift(encoding: Encoding, height: int, width: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Row scores `(h, 2 height - 1)` and column scores `(h, 2 width - 1)` by term, of scores that are their sum.

    Only two rows of query pixels are computed: from the first and the last pixel of an axis one sees all shifts.
    """
    tables = {}
    for name, term in encoding.position_terms(height, width, jnp.array([0, height - 1])).items():
        term = np.asarray(term, np.float64)  # (h, 2, j, k, l)
        row = np.concatenate([term[:, 1, 0, :-1, 0], term[:, 0, 0, :, 0]], axis=1)
        column = np.concatenate([term[:, 0, -1, 0, :-1], term[:, 0, 0, 0, :]], axis=1)
        tables[name] = row, column - term[:, 0, 0, 0, :1]  # the scores of shift zero are in both
    return tables


def position_scores(attention: SelfAttention, grid: tuple[int, int]) -> np.ndarray:
    """All of a layer's position scores `(h, q, p)` float64, flattened pixels; zeros where it has none."""
    pixels = grid[0] * grid[1]
    total = np.zeros((attention.num_heads, pixels, pixels))
    for term in attention.position_terms(*grid).values():
        total += np.asarray(term, np.float64).reshape(total.shape)
    return total


def numbers(**arrays: np.ndarray | nnx.Param) -> dict[str, list]:
    """Arrays as nested lists of Python floats with no more digits than float32 has."""
    return {name: _rounded(np.asarray(array[...], np.float32).tolist()) for name, array in arrays.items()}


def _rounded(value: list | float) -> list | float:
    return [_rounded(item) for item in value] if isinstance(value, list) else float(f"{value:.9g}")
