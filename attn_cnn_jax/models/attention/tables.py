"""Position scores as tables, for the page: by shift where nothing else counts, else for every pair of pixels."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError

MOST_PAIRS = 2**20  # scores of heads and pairs of pixels in a table that is not by shift
LOWEST = -1e30  # stands for minus infinity, which JSON does not have

Terms = Mapping[str, Float[Array, "h i j k l"]]


def score_table(terms_of: Callable[[Int[Array, " i"]], Terms], grid: Grid) -> dict[str, Any] | None:
    """Returns position scores as `Encoding.page_parameters` describes them, the sum of all terms.

    Args:
      terms_of: position scores of query rows, by name.
      grid: rows and columns of pixels.

    Raises:
      UserError: if the scores depend on more than the shift, and are too many to list.
    """
    height, width = grid
    terms = terms_of(jnp.array([0, height // 2, height - 1]))
    if not terms:
        return None
    name = "_and_".join(terms)
    outer = summed(terms)
    pairs = len(outer) * (height * width) ** 2
    rows, scores = np.array([height // 2]), outer[:, [1]]
    if pairs <= MOST_PAIRS:
        rows = np.arange(height)
        scores = summed(terms_of(jnp.arange(height)))
    table = by_shift(outer[:, [0, 2]], grid)
    if not close(at_shifts(table, rows, grid), scores, 1e-5):
        if pairs > MOST_PAIRS:
            raise UserError(
                "position scores that depend on more than the shift between two pixels: a page holds at most "
                f"{MOST_PAIRS:,} of them per layer, not {pairs:,}; choose a smaller --size"
            )
        return {"term": name, "kind": "pixels", "table": scores.reshape(len(scores), height * width, -1)}
    row, column = table[:, :, [width - 1]], table[:, [height - 1], :]
    column = column - table[:, [height - 1], [width - 1]][:, None]  # the score of shift zero is in both
    if close(row + column, table, 1e-6):
        return {"term": name, "kind": "axes", "row": row[:, :, 0], "column": column[:, 0, :]}
    return {"term": name, "kind": "shifts", "table": table}


def summed(terms: Terms) -> Float[np.ndarray, "h i j k l"]:
    """Returns the sum of score terms in float64."""
    return np.maximum(sum(np.asarray(term, np.float64) for term in terms.values()), LOWEST)


def by_shift(corners: Float[np.ndarray, "h 2 j k l"], grid: Grid) -> Float[np.ndarray, "h r t"]:
    """Returns the score of every shift, from the most negative one on: the four corner queries see all shifts.

    Args:
      corners: scores of the first and of the last query row.
      grid: rows and columns of pixels.
    """
    height, width = grid
    table = np.zeros((len(corners), 2 * height - 1, 2 * width - 1))
    for last_row in (0, 1):
        for column in (0, width - 1):
            first = (height - 1) * (1 - last_row), width - 1 - column  # where shift (-row, -column) stands
            table[:, first[0] : first[0] + height, first[1] : first[1] + width] = corners[:, last_row, column]
    return table


def at_shifts(
    table: Float[np.ndarray, "h r t"], rows: Int[np.ndarray, " i"], grid: Grid
) -> Float[np.ndarray, "h i j k l"]:
    """Returns a table's scores for queries in some rows, and all keys."""
    height, width = grid
    row = np.arange(height)[None] - rows[:, None] + height - 1
    column = np.arange(width)[None] - np.arange(width)[:, None] + width - 1
    return table[:, row[:, None, :, None], column[None, :, None, :]]


def close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    """Returns whether scores are the same up to a share of the largest one that is not `LOWEST`."""
    largest = np.abs(b[b > LOWEST]).max(initial=1.0)
    return np.allclose(a, b, rtol=tolerance, atol=tolerance * largest)
