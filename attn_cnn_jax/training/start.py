"""What training begins with: a new network, or a finished run that is fine-tuned, pruned, or has heads reset.

`config.start` says which; a ResNet's convolutions become attention where `config.model.layers` says so (Theorem 1).

What was removed or reset is in the configuration inside every checkpoint, and the first checkpoint is written before
the first step: a run needs the one it started from only once.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from ml_collections import ConfigDict
from tabulate import tabulate

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.config import create_model, with_defaults
from attn_cnn_jax.config.network import encoding_of, grid, heads_by_layer
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.encodings import Learned, Relative
from attn_cnn_jax.models.pruning import NAME, Heads, degenerate_heads, fixed, prune, reset
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.checkpoints import saved_config
from attn_cnn_jax.runs.directory import MAY_CHANGE, MAY_GROW
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.pretrained import located
from attn_cnn_jax.theorem.to_attention import convolutions_to_attention
from attn_cnn_jax.training.hosts import say

HEAD, CLASSES = "classifier.", "classifier.bias"  # the parameters that depend on the classes, one entry per class
TABLES = ("position.tables.row", "position.tables.column")  # of encodings by shift
MOST_NAMES = 6  # of parameters, in a message
# What may differ between a run and the one that it starts from; the rest shapes the parameters.
MAY_DIFFER = {
    *("num_classes", "image_shape", "num_heads", "dropout", "attention_dropout", "attention_dropout_on"),
    *("implementation", "dtype", "init", "locality", "sharpness"),
}
Reasons = Mapping[int, Mapping[int, str]]  # `Heads` with the reason of each


class Beginning(NamedTuple):
    """What training begins with.

    Attributes:
      config: with `model.num_heads` and `start.heads` as pruning or resetting left them.
      model: the network.
      heads: those pruned or reset, one dictionary each: `layer` and `head` from 1, and `reason`; empty where the run
        directory has a checkpoint.
    """

    config: ConfigDict
    model: nnx.Module
    heads: tuple[dict, ...] = ()


def begin(config: ConfigDict, workdir: Path) -> Beginning:
    """Returns the network that training begins with, and the configuration that describes it.

    Args:
      config: complete and valid.
      workdir: the run directory; where it has a checkpoint, only the shape of the network matters.

    Raises:
      UserError: if the first run is not there, is of another kind, would lose no head, or all heads of a layer.
    """
    seed = config.seed
    if not config.start.run:
        return Beginning(config, create_model(config.model, rngs=nnx.Rngs(seed)))
    saved = saved_config(workdir)
    if saved is not None:
        saved = with_defaults(saved)
        for room, key in (name.split(".") for name in (*MAY_CHANGE, *MAY_GROW)):
            saved[room][key] = config[room][key]
        return Beginning(saved, create_model(saved.model, rngs=nnx.Rngs(seed)))
    first = load_run(Path(located(config.start.run)).expanduser())
    if (first.config.model.get("layers"), config.model.get("layers")) == ("convolution", "attention"):
        first.config.model.layers = "attention"
        first = dataclasses.replace(first, model=convolutions_to_attention(first.model, config.model.sharpness))
    check_same_kind(config, first.config)
    for change in changes(config, first.config):
        say(f"starting from {config.start.run}: {change}")
    parameters, statistics = split(first.model)[1:]
    if config.model.name == "resnet":
        fresh = create_model(config.model, rngs=nnx.Rngs(seed))
        return Beginning(config, take_over(fresh, parameters, statistics))
    assert isinstance(first.model, AttentionClassifier)
    counts = heads_by_layer(first.config.model)
    chosen = choose(config, first.model, counts)
    heads = tuple(
        {"layer": layer, "head": head, "reason": chosen[layer - 1][head - 1]} for layer, head in named(chosen)
    )
    if config.start.prune:
        check_some_left(counts, chosen)
        parameters = prune(first.model, chosen)
        counts = tuple(count - len(chosen.get(layer, ())) for layer, count in enumerate(counts))
    config = resolved(config, counts, chosen)
    # Not the first run's seed alone: that would put the heads back where they came from.
    key = jax.random.fold_in(jax.random.key(seed), 2)
    fresh = create_model(config.model, rngs=nnx.Rngs(key))
    if config.start.reset:
        parameters = reset(first.model, split(fresh)[1], chosen)
    return Beginning(config, take_over(fresh, parameters, statistics), heads)


def choose(config: ConfigDict, model: AttentionClassifier, counts: tuple[int, ...]) -> Reasons:
    """Returns the heads to prune or reset: those that `config.start.heads` names, or else the degenerate ones."""
    if not (config.start.prune or config.start.reset):
        return {}
    if not config.start.heads:
        found = degenerate_heads(model, grid(config.model))
        if not found:
            key = "prune" if config.start.prune else "reset"
            raise UserError(
                f"config.start.{key}=True: no head of {config.start.run} is degenerate, so that nothing would change\n"
                f"name heads in config.start.heads, or leave out config.start.{key}"
            )
        return found
    chosen: dict[int, dict[int, str]] = {}
    for layer, head in config.start.heads:
        if layer > len(counts) or head > counts[layer - 1]:
            number = f", layer {layer} has {counts[layer - 1]} heads" if layer <= len(counts) else ""
            raise UserError(
                f"config.start.heads has ({layer}, {head}): {config.start.run} has {len(counts)} layers{number}"
            )
        chosen.setdefault(layer - 1, {})[head - 1] = "named in config.start.heads"
    return chosen


def heads_in_words(beginning: Beginning) -> str:
    """Returns the pruned or reset heads as a table for the log."""
    start, heads = beginning.config.start, beginning.heads
    table = tabulate(heads, headers="keys", tablefmt="plain")
    return f"{len(heads)} heads of {start.run} {'pruned' if start.prune else 'reset'}:\n{table}"


def named(heads: Heads) -> tuple[tuple[int, int], ...]:
    """Returns heads as `config.start.heads` has them: (layer, head) counted from 1, as in tables and figures."""
    return tuple((layer + 1, head + 1) for layer in sorted(heads) for head in sorted(heads[layer]))


def resolved(config: ConfigDict, counts: tuple[int, ...], chosen: Heads) -> ConfigDict:
    """Returns the configuration with the numbers of heads that are left, and which were removed or reset."""
    values = config.to_dict()
    values["model"]["num_heads"] = counts[0] if len(set(counts)) == 1 else counts
    values["model"]["init"] = "paper"  # heads that are left need not fill a grid
    values["start"]["heads"] = named(chosen)
    return ConfigDict(values)


def check_same_kind(config: ConfigDict, first: ConfigDict) -> None:
    """Raises UserError, naming what differs, unless the parameters of the first run fit this network."""
    there, here = first.model.to_dict(), config.model.to_dict()
    comparable = lambda value: list(value) if isinstance(value, tuple) else value  # noqa: E731
    different = {key for key in there | here if comparable(there.get(key)) != comparable(here.get(key))}
    differing = different - MAY_DIFFER
    if there["image_shape"][2] != here["image_shape"][2]:
        differing.add("image_shape")
    # Of a first run that was pruned, one number asked for means what is left.
    was_pruned = isinstance(here.get("num_heads"), int) and not isinstance(there.get("num_heads"), int)
    if "num_heads" in different and not was_pruned and heads_by_layer(config.model) != heads_by_layer(first.model):
        differing.add("num_heads")
    if differing:
        names = [f"config.model.{key} ({there.get(key)!r} there, {here.get(key)!r} here)" for key in sorted(differing)]
        raise UserError(
            f"config.start.run={config.start.run!r} is another network: {', '.join(names)}\nset them as they are there"
        )


def check_some_left(counts: tuple[int, ...], chosen: Heads) -> None:
    """Raises UserError if a layer would lose all its heads."""
    empty = [str(layer + 1) for layer, count in enumerate(counts) if len(chosen.get(layer, ())) == count]
    if empty:
        raise UserError(
            f"config.start.prune: no head would be left in layer {', '.join(empty)}, all are degenerate or named\n"
            "reset them with config.start.reset=True, or name those to remove in config.start.heads"
        )


def take_over(model: nnx.Module, parameters: Arrays, statistics: Arrays) -> nnx.Module:
    """Returns a network with the structure and types of `model` and the values of a trained one.

    Args:
      model: as it is created; may have another number of classes, for which its classifier stays as it is, and be for
        another image size.
      parameters: of the trained network, whose other sizes are those of `model`.
      statistics: likewise.

    Raises:
      UserError: if an array that depends on the image size cannot be made to fit.
    """
    skeleton, own, _ = split(model)

    def taken(name: str, fresh: Array) -> Array:
        if name.startswith(HEAD) and len(parameters[CLASSES]) != len(own[CLASSES]):
            return fresh
        return fitted(model, name, jnp.asarray(parameters[name]), fresh.shape).astype(fresh.dtype)

    return join(skeleton, {name: taken(name, fresh) for name, fresh in own.items()}, statistics)


def fitted(model: Any, name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Returns an array for another image size: a table of vectors by shift, extended or cropped around shift zero."""
    if array.shape == shape:
        return array
    match = NAME.fullmatch(name)
    if match and match[2] in TABLES:
        return resized_table(array, shape[0])
    raise UserError(
        f"config.start.run: {name} has the shape {array.shape} there and {shape} here, and cannot be resized\n"
        "allowed is the image size of that run, or an encoding by shifts"
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
    if here.num_classes != there.num_classes:
        found.append(f"a new classifier for {here.num_classes} classes, before {there.num_classes}")
    if tuple(here.image_shape) != tuple(there.image_shape):
        sizes = [f"{model.image_shape[0]}x{model.image_shape[1]}" for model in (here, there)]
        found.append(f"images of {sizes[0]} pixels, before {sizes[1]}")
        if here.name == "attention" and issubclass(encoding_of(here), Learned | Relative):
            longer = here.image_shape[0] > there.image_shape[0] or here.image_shape[1] > there.image_shape[1]
            how = "extended (far shifts as the farthest known)" if longer else "cropped"
            found[-1] += f"; position tables {how} around shift zero"
    return found


def left_alone(config: ConfigDict, model: nnx.Module) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns what training leaves alone, as `config.start.freeze` says; frozen batch norms keep their statistics.

    Returns:
      By a parameter's name, a boolean array that broadcasts to it, true in entries of heads that must not change (see
      pruning.fixed); and the names of parameters that must not change at all.

    Raises:
      UserError: if a pattern fits no parameter, or nothing is left to train.
    """
    words = [word.strip() for word in config.start.freeze.split(",") if word.strip()]
    names = list(split(model)[1])
    frozen = frozen_names([word for word in words if word not in ("positions", "values")], names)
    for path, module in nnx.iter_modules(model):
        name = ".".join(map(str, path))
        if isinstance(module, nnx.BatchNorm) and {f"{name}.scale", f"{name}.bias"} <= set(frozen):
            module.momentum = 1.0
    if not isinstance(model, AttentionClassifier):
        return {}, frozen
    free: dict[int, set[int]] = {}
    for layer, head in config.start.heads if config.start.reset else ():
        free.setdefault(layer - 1, set()).add(head - 1)
    return fixed(model, free, positions="positions" in words, values="values" in words), frozen


def frozen_names(patterns: list[str], names: list[str]) -> list[str]:
    """Returns the parameters that patterns fit; the pattern `encoder` fits all but the classifier."""
    frozen = set()
    for pattern in patterns:
        fits = (
            {name for name in names if not name.startswith(HEAD)}
            if pattern == "encoder"
            else set(fnmatch.filter(names, pattern))
        )
        if not fits:
            raise UserError(
                f"config.start.freeze has {pattern!r}, which fits no parameter\nallowed are 'encoder', 'positions', "
                f"'values' and patterns of names such as {', '.join(names[:MOST_NAMES])}"
            )
        frozen |= fits
    if len(frozen) == len(names):
        raise UserError(f"config.start.freeze={','.join(patterns)!r}: allowed is what leaves a parameter to train")
    return [name for name in names if name in frozen]
