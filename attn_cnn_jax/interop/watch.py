"""Watches the attention of a network while it runs, and replaces it: the contract of all adapters.

An adapter is a function `watch(model, images, replace)` that runs the network as it is, without changing the user's
object, and returns a `Watched`. It takes what the library offers, and proves itself: the averages of the values that
the network computed are computed again from the attention and the values that were seen.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.errors import UserError

Replace = Callable[[int, np.ndarray], np.ndarray]  # of a layer's number, from 0, and its attention `(b, h, q, p)`
CLOSE = 1e-3  # to one: sums of a row of attention, also in half precision


class Product(NamedTuple):
    """What one layer computed, over all tokens: `averages = attention values`.

    Attributes:
      attention: `(b, h, q, p)`, float32, before a replacement.
      values: `(b, h, p, c)`; `(b, 1, p, c)` where heads share them.
      difference: largest difference of the network's averages from `attention values`, relative to the largest average.
    """

    attention: Float[np.ndarray, "b h q p"]
    values: Float[np.ndarray, "b h p c"]
    difference: float


class Watched(NamedTuple):
    """What a network computed.

    Attributes:
      output: logits, `(b, classes)`, or, of a network without a classifier, whatever it returns, flattened.
      layers: in the order in which the network computed them.
    """

    output: Float[np.ndarray, "b o"]
    layers: list[Product]


def product(attention: Any, values: Any, averages: Any) -> Product:
    """Returns the record of a layer from arrays of the network; UserError unless rows of attention sum to one."""
    attention, values, averages = (np.asarray(array, np.float32) for array in (attention, values, averages))
    sums = attention.sum(axis=-1)
    if not np.allclose(sums, 1, atol=CLOSE):
        raise UserError(f"attention whose rows sum to {sums.min():.4g} to {sums.max():.4g}: expected is 1")
    again = attention @ values
    return Product(attention, values, float(np.abs(again - averages).max() / max(np.abs(averages).max(), 1e-30)))
