"""Scores of content, small enough for a page: low-rank factors, rounded to whole multiples of a step.

Scores of content are `q . k` for every pair of pixels. The singular value decomposition turns queries and keys
into the fewest numbers with the same products, most important direction first, and a step as coarse as the
attention can bear rounds them. Directions that fall below the step vanish; those just above need few bits.
"""

import base64
import gzip
from typing import NamedTuple

import numpy as np

TOLERANCE = 3e-5  # largest error of a probability; the page promises 1e-4
COARSEST, FINEST = 2.0, 2.0**-24  # steps that are tried


class Factors(NamedTuple):
    """Scores `(q, p)` as `step^2 * codes[0].T @ codes[1]`; codes `(2, rank, pixels)` int32."""

    step: float
    codes: np.ndarray

    def scores(self) -> np.ndarray:
        """`(q, p)` float64."""
        query, key = self.codes * self.step
        return query.T @ key


def quantise(terms: dict[str, np.ndarray], position: np.ndarray | float = 0.0) -> dict[str, Factors]:
    """Factors of one head's content terms, as coarse as keeps its attention.

    Args:
      terms: content scores by name, `(q, p)` each.
      position: scores `(q, p)` that are added to them.

    Returns:
      Factors by name. Attention by all scores together, or by one term alone, differs from the exact one by no
      more than TOLERANCE.
    """
    total = sum(terms.values()) + position
    share = TOLERANCE / len(terms)
    return {name: _coarsest(term, total - term, share) for name, term in terms.items()}


def _coarsest(term: np.ndarray, others: np.ndarray | float, tolerance: float) -> Factors:
    """Factors with the coarsest step at which attention by `term`, alone or with `others`, is within `tolerance`."""
    left, values, right = np.linalg.svd(np.asarray(term, np.float64), full_matrices=False)
    factors = np.stack([left.T, right]) * np.sqrt(values)[:, None]
    exact = [softmax(term), softmax(term + others)]
    step = COARSEST
    while True:
        codes = np.rint(factors / step).astype(np.int32)
        rounded = Factors(step, codes[:, np.any(codes, axis=(0, 2))])
        scores = rounded.scores()
        errors = [np.abs(softmax(s) - e).max() for s, e in zip((scores, scores + others), exact, strict=True)]
        if max(errors) <= tolerance or step <= FINEST:
            return rounded
        step /= 2


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
