"""What a network returns, of whatever form: logits of a classifier, or features of patches and of a class token."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import numbers
from attn_cnn_jax.instrument.network import Network

NAMES = ("logits", "x_norm_patchtokens", "last_hidden_state")  # of outputs that libraries return, by preference


class Output(NamedTuple):
    """Arrays by what they are of, images first: `(b, o)` logits or pooled features, `(b, n, d)` tokens, channels last.

    Attributes:
      array: that of the network.
      classifies: whether it is logits of classes.
    """

    array: Float[np.ndarray, "b *n d"]
    classifies: bool


def as_output(network: Network, output: Any, count: int) -> Output:
    """Returns the output for the first `count` images; UserError where there is no array among what is returned."""
    named = None
    if isinstance(output, Mapping):
        named = next((name for name in NAMES if output.get(name) is not None), None)
        output = output[named] if named else next((x for x in output.values() if is_array(x)), None)
    elif not is_array(output) and not isinstance(output, list | tuple):
        named = next((name for name in NAMES if getattr(output, name, None) is not None), None)
        output = getattr(output, named) if named else None
    while isinstance(output, list | tuple):
        output = next((x for x in output if is_array(x) or (isinstance(x, list | tuple) and x)), None)
    if not is_array(output) or len(output) < count:
        raise UserError(f"{network.name} returns no array of {count} images: allowed are arrays, tuples, dictionaries")
    array = numbers(output)[:count]
    if array.ndim == 4 and network.channels_first:
        array = np.moveaxis(array, 1, -1)
    features = named in NAMES[1:] or getattr(network.model, "num_classes", None) == 0
    return Output(array, array.ndim == 2 and not features)


def is_array(x: Any) -> bool:
    """Whether it is an array of several images of any library."""
    return hasattr(x, "ndim") and hasattr(x, "shape") and x.ndim > 1
