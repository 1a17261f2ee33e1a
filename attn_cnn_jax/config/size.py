"""How large the network of a configuration is, in a time that does not grow with its depth."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import jax
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import abstract_model, heads_by_layer


class Size(NamedTuple):
    """Number of trainable values, and of their bytes."""

    values: int
    bytes: int


def parameter_size(model: ConfigDict) -> Size:
    """Returns the size of the network that `config.model` describes; allocates nothing.

    What a layer adds depends on its number of heads alone, but for the first, whose tables others may share: networks
    of one and of two layers tell it.
    """
    if model.name != "attention":
        return size_of(model)
    first, *others = heads_by_layer(model)
    one = size_of(with_heads(model, [first]))
    values, in_bytes = one
    for heads, count in Counter(others).items():
        two = size_of(with_heads(model, [first, heads]))
        values, in_bytes = values + count * (two.values - one.values), in_bytes + count * (two.bytes - one.bytes)
    return Size(values, in_bytes)


def with_heads(model: ConfigDict, counts: Sequence[int]) -> ConfigDict:
    """Returns `config.model` with as many layers as there are numbers of heads."""
    return ConfigDict(model.to_dict() | {"num_layers": len(counts), "num_heads": tuple(counts)})


def size_of(model: ConfigDict) -> Size:
    """Returns the size of a network, layer by layer."""
    arrays = jax.tree.leaves(nnx.state(abstract_model(model), nnx.Param))
    return Size(sum(array.size for array in arrays), sum(array.size * array.dtype.itemsize for array in arrays))
