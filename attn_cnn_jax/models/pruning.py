"""Prunes, resets and freezes heads.

Which heads are degenerate an encoding says itself (`Encoding.degenerate_heads`). Works on the named arrays of a network
(variables.py) and on what its layers and encodings say of them. Heads are counted from 0.
"""

import functools
import re
from collections.abc import Callable, Collection, Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Shaped

from attn_cnn_jax.arrays import Arrays, Grid
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.variables import split

NAME = re.compile(r"blocks\.(\d+)\.attention\.(.+)")

Heads = Mapping[int, Collection[int]]  # of some layers, by the layer's number


def degenerate_heads(model: AttentionClassifier, grid: Grid) -> dict[int, dict[int, str]]:
    """Returns the heads that learned nothing, by layer and head, with the reason; layers without any are left out.

    A layer that also attends by content has none: a head without a position of its own still attends.
    """
    found = {
        n: block.attention.position.degenerate_heads(grid)
        for n, block in enumerate(model.blocks)
        if not block.attention.depends_on_content
    }
    return {layer: heads for layer, heads in found.items() if heads}


def head_axes(layer: SelfAttention) -> dict[str, int]:
    """Returns, by parameter of a layer, the axis that counts heads, alone or together with the channels of a head."""
    axes = dict(layer.head_axis)
    for part, encoding in (("position", layer.position), ("content", layer.content)):
        if encoding is not None:
            axes |= {f"{part}.{name}": axis for name, axis in encoding.head_axis.items()}
    return axes


def prune(model: AttentionClassifier, heads: Heads) -> Arrays:
    """Returns the parameters without some heads; their network computes what it did with these heads' values zero."""

    def remaining(layer, array, axis):
        count = model.blocks[layer].attention.num_heads
        kept = [head for head in range(count) if head not in heads.get(layer, ())]
        return join_heads(jnp.take(split_heads(jnp.asarray(array), axis, count), jnp.array(kept), axis=axis), axis)

    return {name: changed(model, name, array, remaining) for name, array in parameters_of(model).items()}


def reset(model: AttentionClassifier, fresh: Arrays, heads: Heads) -> Arrays:
    """Returns the parameters with some heads taken from `fresh`, the parameters of a new network of the same shape."""

    def replaced(name, layer, array, axis):
        chosen = head_mask(array, axis, model.blocks[layer].attention.num_heads, heads.get(layer, ()))
        return jnp.where(chosen, fresh[name], array)

    return {
        name: changed(model, name, array, functools.partial(replaced, name))
        for name, array in parameters_of(model).items()
    }


def entries(model: AttentionClassifier, heads: Heads) -> dict[str, Bool[np.ndarray, "..."]]:
    """Returns which entries of the parameters are those of some heads, all that `reset` replaces.

    Returns:
      By the parameter's name a boolean array `(1, ..., h c, ..., 1)` that broadcasts to it, only where any is.
    """

    def of_heads(layer, array, axis):
        return jnp.asarray(head_mask(array, axis, model.blocks[layer].attention.num_heads, heads.get(layer, ())))

    none = {name: jnp.zeros(array.shape, bool) for name, array in parameters_of(model).items()}
    masks = {name: np.asarray(changed(model, name, array, of_heads)) for name, array in none.items()}
    return {name: mask for name, mask in masks.items() if mask.any()}


def fixed(
    model: AttentionClassifier, free: Heads, *, positions: bool, values: bool
) -> dict[str, Bool[np.ndarray, "..."]]:
    """Returns which entries training must leave alone to keep the positions or value maps of all heads but `free`.

    Returns:
      By the parameter's name a boolean array `(1, ..., h c, ..., 1)` that broadcasts to it, only where any entry
      is fixed.
    """
    masks = {}
    for name, array in parameters_of(model).items():
        match = NAME.fullmatch(name)
        if match is None:
            continue
        number, own = int(match[1]), match[2]
        layer = model.blocks[number].attention
        names = {f"position.{each}" for each in layer.position.positions} if positions else set()
        names |= set(layer.values) if values else set()
        if own not in names:
            continue
        axis = head_axes(layer).get(own)
        if axis is None:  # all heads of a layer read its tables
            masks[name] = np.ones((1,) * array.ndim, bool)
        else:
            masks[name] = ~head_mask(array, axis, layer.num_heads, free.get(number, ()))
    return {name: mask for name, mask in masks.items() if mask.any()}


def parameters_of(model: nnx.Module) -> Arrays:
    """Returns the parameters of a network by name."""
    return split(model)[1]


def split_heads(array: Shaped[Array, "..."], axis: int, num_heads: int) -> Shaped[Array, "..."]:
    """Splits the axis of heads and their channels in two, heads first: `(..., h c, ...) -> (..., h, c, ...)`."""
    return array.reshape(*array.shape[:axis], num_heads, -1, *array.shape[axis + 1 :])


def join_heads(array: Shaped[Array, "..."], axis: int) -> Shaped[Array, "..."]:
    """Joins the axis of heads and the axis of their channels behind it: `(..., h, c, ...) -> (..., h c, ...)`."""
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def head_mask(array: Array, axis: int, num_heads: int, heads: Collection[int]) -> Bool[np.ndarray, "..."]:
    """Returns a mask, true at the entries of some heads: `(1, ..., h c, ..., 1)`, which broadcasts to `array`."""
    size = array.shape[axis] // num_heads
    along = np.repeat(np.isin(np.arange(num_heads), list(heads)), size)
    return along.reshape(*(-1 if a == axis else 1 for a in range(array.ndim)))


def changed(model: AttentionClassifier, name: str, array: Array, function: Callable) -> Array:
    """Returns `function(layer, array, axis)` where a parameter has an axis of heads, else the array as it is."""
    match = NAME.fullmatch(name)
    axes = head_axes(model.blocks[int(match[1])].attention) if match else {}
    if match is None or match[2] not in axes:
        return array
    return function(int(match[1]), array, axes[match[2]])
