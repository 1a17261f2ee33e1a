"""Fine-tuning: what a network takes over from a trained one, what of it stays as it is, and what moves slowly."""

import fnmatch
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.config.network import encoding_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.pruning import NAME, entries
from attn_cnn_jax.models.variables import join, split

HEAD = "classifier."  # the parameters that depend on the classes
TABLES = ("position.tables.row", "position.tables.column")  # of encodings by shift
MOST_NAMES = 6  # of parameters, in a message


def take_over(model: nnx.Module, parameters: Arrays, statistics: Arrays, *, new_head: bool) -> nnx.Module:
    """Returns a network with the structure and types of `model` and the values of a trained one.

    Args:
      model: as it is created; may have other classes and be for another picture size.
      parameters: of the trained network, whose other sizes are those of `model`.
      statistics: likewise.
      new_head: whether the classifier stays as `model` has it.

    Raises:
      UserError: if an array that depends on the picture size cannot be made to fit.
    """
    skeleton, own, _ = split(model)

    def taken(name: str, fresh: Array) -> Array:
        if new_head and name.startswith(HEAD):
            return fresh
        return fitted(model, name, jnp.asarray(parameters[name]), fresh.shape).astype(fresh.dtype)

    return join(skeleton, {name: taken(name, fresh) for name, fresh in own.items()}, statistics)


def fitted(model: Any, name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Returns an array for another picture size: a table of vectors by shift, extended or cropped around shift zero."""
    if array.shape == shape:
        return array
    match = NAME.fullmatch(name)
    if match and match[2] in TABLES and model.blocks[int(match[1])].attention.position.has_tables:
        return resized_table(array, shape[0])
    raise UserError(
        f"config.start.run: {name} has the shape {array.shape} there and {shape} here, and cannot be resized\n"
        "allowed is the picture size of that run, or an encoding by shifts"
    )


def resized_table(table: Float[Array, "r d"], length: int) -> Float[Array, "s d"]:
    """Returns a table with a vector per shift for another number of shifts; shift zero stays in the middle.

    Shifts farther than the table reached get the vector of the farthest one.

    Args:
      table: shifts from `-(M - 1)` to `M - 1`.
      length: the number of shifts wanted, odd.
    """
    reach, wanted = len(table) // 2, length // 2
    shifts = np.clip(np.arange(-wanted, wanted + 1), -reach, reach)
    return table[jnp.asarray(shifts + reach)]


def changes(config: ConfigDict, first: ConfigDict) -> list[str]:
    """Returns in words what a network does not take over as it is from that of another configuration."""
    here, there = config.model, first.model
    found = []
    if config.start.new_head:
        found.append(f"a new classifier for {here.num_classes} classes, before {there.num_classes}")
    if tuple(here.image_shape) != tuple(there.image_shape):
        sizes = [f"{model.image_shape[0]}x{model.image_shape[1]}" for model in (here, there)]
        found.append(f"pictures of {sizes[0]} pixels, before {sizes[1]}")
        if here.name == "attention" and encoding_of(here).has_tables:
            longer = here.image_shape[0] > there.image_shape[0] or here.image_shape[1] > there.image_shape[1]
            how = "extended (far shifts as the farthest known)" if longer else "cropped"
            found[-1] += f"; position tables {how} around shift zero"
    return found


def frozen_names(freeze: str, names: list[str]) -> list[str]:
    """Returns the parameters that `config.start.freeze` names.

    Args:
      freeze: "" for none, "encoder" for all but the classifier, or patterns such as `embedding.*,blocks.[01].*`.
      names: of all parameters.

    Raises:
      UserError: if a pattern fits none of them, or nothing is left to train.
    """
    if freeze == "encoder":
        return [name for name in names if not name.startswith(HEAD)]
    patterns = [pattern.strip() for pattern in freeze.split(",") if pattern.strip()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            shown = ", ".join(names[:MOST_NAMES])
            raise UserError(
                f"config.start.freeze has {pattern!r}, which fits no parameter\n"
                f"allowed are 'encoder' and patterns of names such as {shown}"
            )
    frozen = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if len(frozen) == len(names):
        raise UserError(f"config.start.freeze={freeze!r}: every parameter is frozen, nothing is left to train")
    return frozen


def hold_statistics(model: nnx.Module, frozen: list[str]) -> None:
    """Makes batch norms whose parameters are frozen keep their running statistics; changes the network in place.

    In training they normalise by the statistics of the batch, as all others.
    """
    for path, module in nnx.iter_modules(model):
        name = ".".join(map(str, path))
        if isinstance(module, nnx.BatchNorm) and {f"{name}.scale", f"{name}.bias"} <= set(frozen):
            module.momentum = 1.0


def reset_heads(config: ConfigDict) -> dict[int, set[int]]:
    """Returns the heads that begin anew, by layer, counted from 0; `config` has `start.heads` as the run began."""
    heads: dict[int, set[int]] = {}
    for layer, head in config.start.heads if config.start.reset else ():
        heads.setdefault(layer - 1, set()).add(head - 1)
    return heads


def rate_factors(config: ConfigDict, model: nnx.Module) -> dict[str, Any]:
    """Returns the factor of the learning rate by parameter, of those that are taken over from another run.

    Of a parameter of which some heads begin anew, an array that broadcasts to it: 1 for them.

    Args:
      config: of the run, with `start.new_head` and `start.heads` as the run began.
      model: its network.
    """
    factor = config.start.rate_factor
    if factor == 1:
        return {}
    arrays = split(model)[1]
    anew = entries(model, reset_heads(config)) if isinstance(model, AttentionClassifier) else {}
    factors = {name: np.where(mask, 1, factor).astype(arrays[name].dtype) for name, mask in anew.items()}
    names = (name for name in arrays if not (config.start.new_head and name.startswith(HEAD)))
    return {name: factors.get(name, factor) for name in names}
