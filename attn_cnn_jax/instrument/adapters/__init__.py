"""Runs a network of any library while a visitor sees every product of attention with values: the contract of adapters.

An adapter is a function `run(model, images, visit)` that runs the network in evaluation mode and leaves the user's
object as it is. `visit` is called once per product, in the order of computation; attention that it returns is used in
place of the network's own. It may raise to end the run. An adapter proves itself: averages computed again from the
attention and the values seen agree with the network's (`Call.difference`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import Grid

Attention = Float[np.ndarray, "b h q p"]
CLOSE = 1e-3  # to one: sums of a row of attention in float32
HALF = 2**-7  # the same where a softmax in bfloat16 rounds its exponentials, their sum and the quotient


class Call(NamedTuple):
    """One product of attention with values; arrays are made when they are asked for."""

    number: int  # among all products of a run, from 0
    kind: str  # the function that computed it
    shape: tuple[int, int, int, int]  # images (times windows), heads, queries, keys
    attention: Callable[[], Attention]  # float32, before a replacement
    values: Callable[[], Float[np.ndarray, "b h p c"]]  # one for all heads where they share them
    averages: Callable[[], Float[np.ndarray, "b h q c"]]  # `attention values`
    difference: Callable[[], float]  # of the network's averages from these, relative to the largest
    exact: bool = True  # computed in float32 or wider
    place: int = -1  # among all operations that may be products, whatever their numbers; see adapters/replaced_*.py


class Replacement(NamedTuple):
    """What takes the place of some heads of one layer for good: depth-wise convolutions of their values.

    Attributes:
      heads: their numbers, from 0.
      weights: one kernel per head.
      repeated: by head, whether the outermost patches continue beyond the border; else weights are renormalised there.
      tokens: which are patches, row by row.
      grid: rows and columns of patches.
    """

    heads: tuple[int, ...]
    weights: Float[np.ndarray, "n r t"] | None
    repeated: tuple[bool, ...]
    tokens: tuple[int, ...]
    grid: Grid


LOCAL = "local"  # in place of attention: every query has the value of its own place, or, of other keys, nothing
NOTHING = "nothing"  # no query has any value
Visit = Callable[[Call], Any]  # returns attention `(b, h, q, p)`, LOCAL, NOTHING, or None for the network's own


class Softmax(NamedTuple):
    """A softmax whose product with values was not seen."""

    before: int  # how many calls were seen when it was computed
    shape: tuple[int, ...]
    result: Callable[[], Any]  # a weak reference to it


class Seen(NamedTuple):
    """What a run gave: the network's output, any tree, and softmaxes without a product."""

    output: Any
    unseen: list[Softmax]


def absorb(pending: list[Softmax], attention: Any) -> None:
    """Removes the softmax that a product multiplies; where it is none itself, those of its size: ConViT sums two."""
    itself = [softmax for softmax in pending if softmax.result() is attention]
    gone = itself or [softmax for softmax in pending if softmax.shape[-2:] == tuple(attention.shape[-2:])]
    pending[:] = [softmax for softmax in pending if not any(softmax is other for other in gone)]


def numbers(array: Any) -> Float[np.ndarray, "..."]:
    """An array of any library, type and device as NumPy's float32."""
    return np.asarray(array.detach().float().numpy(force=True) if hasattr(array, "detach") else array, np.float32)


def difference(again: np.ndarray, own: np.ndarray) -> float:
    """The largest difference of averages, relative to the largest average."""
    return float(np.abs(again - own).max() / max(np.abs(own).max(), 1e-30))


def sums_to_one(rows: Any, exact: bool = True) -> bool:
    """Whether non-negative numbers of NumPy or JAX sum to one over the last axis."""
    rows = np.asarray(rows, np.float32)
    return bool(rows.min() >= 0) and bool(np.abs(rows.sum(axis=-1) - 1).max() < (CLOSE if exact else HALF))
