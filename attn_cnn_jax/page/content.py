"""Scores of content, small enough for a page: low-rank factors, rounded to whole multiples of a step.

Scores of content are `q . k` for every pair of pixels. The singular value decomposition turns queries and keys
into the fewest numbers with the same products, most important direction first, and a step as coarse as the
attention can bear rounds them. Directions that fall below the step vanish; those just above need few bits.
Where there are too many directions for that, the scores themselves are rounded, as products with unit vectors.
"""

import base64
import gzip
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attn_cnn_jax.errors import UserError

TOLERANCE = 5e-5  # largest error of a probability; the page promises 1e-4
STEPS = 2.0 ** -np.arange(-1, 25)  # that are tried, coarsest first


class Factors(NamedTuple):
    """Scores `(q, p)` as `step^2 * codes[0].T @ codes[1]`; codes `(2, rank, pixels)`, whole numbers."""

    step: float
    codes: np.ndarray

    def scores(self) -> np.ndarray:
        """`(q, p)` float64."""
        query, key = self.codes * self.step
        return query.T @ key


def quantise(terms: dict[str, np.ndarray], position: np.ndarray) -> dict[str, Factors]:
    """Factors of one head's content terms, as coarse as keeps its attention.

    Args:
      terms: content scores by name, `(q, p)` each.
      position: scores `(q, p)` that are added to them.

    Returns:
      Factors by name, int32. Attention by all scores together, or by one term alone, differs from the exact one by no
      more than TOLERANCE.
    """
    total = sum(terms.values()) + position
    share = TOLERANCE / len(terms)
    return {name: _smallest(term, total - term, share) for name, term in terms.items()}


def _smallest(term: np.ndarray, others: np.ndarray, tolerance: float) -> Factors:
    """The smaller one of two ways to write a term: its main directions, or its rows one by one."""
    left, values, right = np.linalg.svd(term, full_matrices=False)
    directions = np.stack([left.T, right]) * np.sqrt(values)[:, None]

    def by_direction(step):
        codes = np.rint(directions / step)
        return Factors(step, codes[:, np.any(codes, axis=(0, 2))])

    def by_row(step):
        return Factors(step, np.stack([np.eye(len(term)), np.rint(term / step**2)]))

    candidates = [_coarsest(rounded, term, others, tolerance) for rounded in (by_direction, by_row)]
    fine = [factors for factors in candidates if factors is not None]
    if not fine:
        raise UserError(f"content scores up to {np.abs(term).max():.3g} are too large to store in a page")
    smallest = min(fine, key=lambda factors: np.log2(1 + 2 * np.abs(factors.codes)).sum())  # about its bits
    return smallest._replace(codes=smallest.codes.astype(np.int32))


def _coarsest(
    rounded: Callable[[float], Factors], term: np.ndarray, others: np.ndarray, tolerance: float
) -> Factors | None:
    """Factors with the coarsest step at which attention by `term`, alone or with `others`, is within `tolerance`."""
    exact = [softmax(term), softmax(term + others)]
    for step in STEPS:
        factors = rounded(step)
        if np.abs(factors.codes).max(initial=0) >= 2**31:
            return None
        scores = factors.scores()
        errors = [np.abs(softmax(s) - e).max() for s, e in zip((scores, scores + others), exact, strict=True)]
        if max(errors) <= tolerance:
            return factors
    return None


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over keys, the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def pack(codes: list[np.ndarray]) -> str:
    """Integers as text: signs in the lowest bit, one plane of bytes after the other, gzip, base64.

    Codes are small, so that the planes of their high bytes are almost all zeros, which cost nothing.
    """
    values = np.concatenate([array.ravel() for array in codes] or [np.zeros(0, np.int32)])
    unsigned = ((values << 1) ^ (values >> 31)).astype("<u4")
    planes = unsigned.view(np.uint8).reshape(-1, 4).T
    return base64.b64encode(gzip.compress(planes.tobytes(), compresslevel=9, mtime=0)).decode("ascii")
