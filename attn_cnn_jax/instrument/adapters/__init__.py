"""Runs a network of any library while a visitor sees every product of attention with values: the contract of adapters.

An adapter is a function `run(model, images, visit)` that runs the network in evaluation mode and leaves the user's
object as it is. `visit` is called once per product, in the order of computation; attention that it returns is used in
place of the network's own. It may raise to end the run. An adapter proves itself: averages computed again from the
attention and the values seen agree with the network's (`Call.difference`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import Grid

Attention = Float[np.ndarray, "b h q p"]
ROUNDING = 1e-6  # of a probability, in float32
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
    result: Any  # its sum over the last axis is one

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.result.shape)


class Seen(NamedTuple):
    """What a run gave: the network's output, any tree, and softmaxes without a product."""

    output: Any
    unseen: list[Softmax]


def absorb(pending: list[Softmax], attention: Any) -> None:
    """Removes the softmax that a product multiplies, whatever its shape and type became, or the two whose mean it is.

    ConViT multiplies such a mean of the last two. One that is alone, of the same queries and keys, may be mixed with
    anything. Of several, others stay: their products were not seen.
    """
    if len(pending) == 1 and pending[0].shape[-2:] == tuple(attention.shape[-2:]):
        pending.clear()
        return
    of = next((softmax for softmax in reversed(pending) if is_of(attention, softmax.result)), None)
    if of is not None:
        pending[:] = [softmax for softmax in pending if softmax is not of]
    elif len(pending) > 1 and is_mean_of(*(numbers(x) for x in (attention, pending[-1].result, pending[-2].result))):
        del pending[-2:]


def is_of(attention: Any, softmax: Any) -> bool:
    """Whether attention is a softmax: as it was, a view of it, or the same numbers in another order or type."""
    if attention is softmax or storage(attention) == storage(softmax) is not None:
        return True
    types = [jnp.dtype(str(x.dtype).removeprefix("torch.")) for x in (attention, softmax)]
    ours, other = (
        functools.reduce(lambda x, of: x.astype(of), [*types, np.float32], numbers(x)) for x in (attention, softmax)
    )
    if ours.size == other.size:
        ours, other = ours.ravel(), other.ravel()
        return np.array_equal(ours, other) or np.array_equal(np.sort(ours), np.sort(other))
    return broadcasts(other.shape, ours.shape) and bool((ours == other).all())


def storage(array: Any) -> int | None:
    """Where a tensor of PyTorch has its numbers, which its views share; None for arrays of other libraries."""
    return array.untyped_storage().data_ptr() if hasattr(array, "untyped_storage") else None


def is_mean_of(attention: np.ndarray, *softmaxes: np.ndarray) -> bool:
    """Whether each number of attention is between those of two softmaxes, up to rounding."""
    if not all(broadcasts(softmax.shape, attention.shape) for softmax in softmaxes):
        return False
    least, most = np.minimum(*softmaxes) - ROUNDING, np.maximum(*softmaxes) + ROUNDING
    return bool(((least <= attention) & (attention <= most)).all())


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of a shape can be repeated along its axes to another shape."""
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(shape[::-1], to[::-1], strict=False))


def numbers(array: Any) -> Float[np.ndarray, "..."]:
    """An array of any library, type and device as NumPy's float32."""
    return np.asarray(array.detach().float().numpy(force=True) if hasattr(array, "detach") else array, np.float32)


def difference(again: np.ndarray, own: np.ndarray) -> float:
    """The largest difference of averages, relative to the largest average."""
    return float(np.abs(again - own).max() / max(np.abs(own).max(), 1e-30))
