"""Watches the attention of a network while it runs, and replaces it: the contract of all adapters.

An adapter is a function `watch(model, images, replace)` that runs the network without changing the user's object. It
proves itself: the averages that the network computed are computed again from the attention and the values seen.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Replace = Callable[[int, np.ndarray], np.ndarray]  # of a layer's number, from 0, and its attention `(b, h, q, p)`
CLOSE = 1e-3  # to one: sums of a row of attention, also in half precision


class Product(NamedTuple):
    """What one layer computed, over all tokens: `averages = attention values`."""

    attention: Float[np.ndarray, "b h q p"]  # float32, before a replacement
    values: Float[np.ndarray, "b h p c"]  # one for all heads where they share them
    difference: float  # of the network's averages from `attention values`, the largest, relative to the largest average


# The logits, `(b, classes)`, or, of a network without a classifier, whatever it returns, flattened; and its layers, in
# the order in which the network computed them.
Watched = tuple[Float[np.ndarray, "b o"], list[Product]]


def product(attention: Any, values: Any, own: Any, again: Any = None) -> Product:
    """Returns the record of a layer: `own` is what it computed, `again` the same from what was seen, averages if None.

    Arrays are NumPy's, JAX's, or PyTorch's on CPUs.
    """
    attention, values, own = (np.asarray(array, np.float32) for array in (attention, values, own))
    again = attention @ values if again is None else np.asarray(again, np.float32)
    return Product(attention, values, float(np.abs(again - own).max() / max(np.abs(own).max(), 1e-30)))
