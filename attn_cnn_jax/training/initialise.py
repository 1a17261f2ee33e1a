"""The network that training begins with: new, or that of a finished run (fine-tuned, pruned, heads reset).

`config.start` says which; a ResNet's convolutions become attention where `config.model.layers` says so (Theorem 1).

What was removed or reset is in the configuration inside every checkpoint, and the first checkpoint is written before
the first step: a run needs the one it started from only once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.config import create_model, spec_of, with_defaults
from attn_cnn_jax.config.base import flatten
from attn_cnn_jax.config.network import grid, heads_by_layer
from attn_cnn_jax.config.shipped import known_configs, shipped
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.encodings import Learned, Relative, encoding_class
from attn_cnn_jax.models.pruning import HEAD, degenerate_heads, prune, reset
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.output import table
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.load import load_network
from attn_cnn_jax.theorem.to_attention import convolutions_to_attention
from attn_cnn_jax.training.hosts import say

TABLES = (".position.tables.row", ".position.tables.column")  # of encodings by shift
# What may differ between a run and the one that it starts from; the rest shapes the parameters.
MAY_DIFFER = {
    *("num_classes", "image_shape", "num_heads", "dropout", "attention_dropout", "attention_dropout_on"),
    *("implementation", "dtype", "init", "locality", "sharpness"),
}
Reasons = Mapping[int, Mapping[int, str]]  # by layer and head from 0, why the head is pruned or reset


def initial_network(config: ConfigDict, workdir: Path) -> tuple[ConfigDict, nnx.Module]:
    """Returns the network that training begins with, and its configuration: with the heads that pruning or reset left.

    Where `workdir` has a checkpoint, only the shape of the network matters. UserError if the first run is not there, is
    of another kind, would lose no head, or all heads of a layer.
    """
    start = config.start
    if not start.run:
        return config, create_model(config.model, rngs=nnx.Rngs(config.seed))
    if (saved := ckpt.saved_config(workdir)) is not None:
        saved = with_defaults(saved)
        for room, key in (name.split(".") for name in (*directory.MAY_CHANGE, *directory.MAY_GROW)):
            saved[room][key] = config[room][key]
        return saved, create_model(saved.model, rngs=nnx.Rngs(config.seed))
    _, first, model, _ = load_network(start.run)
    if (first.model.get("layers"), config.model.get("layers")) == ("convolution", "attention"):
        first.model.layers, model = "attention", convolutions_to_attention(model, config.model.sharpness)
    check_same_kind(config, first)
    say_changes(config, first)
    parameters, statistics, rows = *split(model)[1:], classifier_rows(config, first)
    if not isinstance(model, AttentionClassifier):
        fresh = create_model(config.model, rngs=nnx.Rngs(config.seed))
        return config, transfer(fresh, parameters, statistics, rows)
    counts = heads_by_layer(first.model)
    chosen = choose(config, model, counts)
    heads = [(layer + 1, head + 1, chosen[layer][head]) for layer in sorted(chosen) for head in sorted(chosen[layer])]
    if heads:
        reasons = table(heads, ("layer", "head", "reason"), left=3)
        say(f"{len(heads)} heads of {start.run} {'pruned' if start.prune else 'reset'}:\n{reasons}")
    if start.prune:
        parameters = prune(model, chosen)
        counts = tuple(count - len(chosen.get(layer, ())) for layer, count in enumerate(counts))
    values = config.to_dict()
    values["model"]["num_heads"] = counts[0] if len(set(counts)) == 1 else counts
    values["model"]["init"] = "paper"  # heads that are left need not fill a grid
    values["start"]["heads"] = tuple(head[:2] for head in heads)
    config = ConfigDict(values)
    # Not the first run's seed alone: that would put the heads back where they came from.
    fresh = create_model(config.model, rngs=nnx.Rngs(jax.random.fold_in(jax.random.key(config.seed), 2)))
    if start.reset:
        parameters = reset(model, split(fresh)[1], chosen)
    return config, transfer(fresh, parameters, statistics, rows)


def choose(config: ConfigDict, model: AttentionClassifier, counts: tuple[int, ...]) -> Reasons:
    """Returns the heads to prune or reset: those that `config.start.heads` names, or else the degenerate ones."""
    start = config.start
    if not (start.prune or start.reset):
        return {}
    chosen: dict[int, dict[int, str]] = {}
    for layer, head in start.heads:
        if layer > len(counts) or head > counts[layer - 1]:
            there = f"{len(counts)} layers of {', '.join(map(str, counts))} heads"
            raise UserError(f"config.start.heads has ({layer}, {head}): {start.run} has {there}")
        chosen.setdefault(layer - 1, {})[head - 1] = "named in config.start.heads"
    heads = chosen or degenerate_heads(model, grid(config.model))
    if not heads:
        key = "prune" if start.prune else "reset"
        raise UserError(
            f"config.start.{key}=True: no head of {start.run} is degenerate, so that nothing would change\n"
            f"name heads in config.start.heads, or leave out config.start.{key}"
        )
    empty = [str(layer + 1) for layer, count in enumerate(counts) if len(heads.get(layer, ())) == count]
    if start.prune and empty:
        raise UserError(
            f"config.start.prune: no head would be left in layer {', '.join(empty)}, all are degenerate or named\n"
            "reset them with config.start.reset=True, or name those to remove in config.start.heads"
        )
    return heads


def check_same_kind(config: ConfigDict, first: ConfigDict) -> None:
    """Raises UserError, naming what differs, unless the parameters of the first run fit this network."""
    there, here = (flatten(directory.from_json(directory.to_json(each.model))) for each in (first, config))
    may_differ = set(MAY_DIFFER)
    seen, given = (each["image_shape"][2] for each in (there, here))
    if seen != given:  # which no configuration changes
        advice = f"save these with {seen}, or start from a run on images with {given}"
        raise UserError(
            f"config.start.run={config.start.run!r} has images with {seen} channels, here with {given}\n{advice}"
        )
    # Of a first run that was pruned, one number asked for means what is left.
    was_pruned = isinstance(here.get("num_heads"), int) and isinstance(there.get("num_heads"), list)
    if "num_heads" in here and not was_pruned and heads_by_layer(config.model) != heads_by_layer(first.model):
        may_differ.remove("num_heads")
    old, new = ({f"config.model.{key}": each[key] for key in each if key not in may_differ} for each in (there, here))
    if others := directory.differing(old, new):
        which = f"config.start.run={config.start.run!r} is another network"
        same = [name for name in known_configs() if is_shipped_as(name, there, may_differ)]
        advice = f"take --config={same[0]}, which has them so" if same else "set them as they are there"
        raise UserError(f"{which}: {listed(others)}\n{advice}")


def is_shipped_as(name: str, model: Mapping[str, object], may_differ: set[str]) -> bool:
    """Returns whether a configuration of the package has the flat `config.model` of a first run."""
    own = flatten(directory.from_json(directory.to_json(shipped(name).model)))
    return all(own.get(key) == value for key, value in model.items() if key not in may_differ)


def say_changes(config: ConfigDict, first: ConfigDict) -> None:
    """Says what a network does not take over as it is from that of another configuration."""
    here, there, prefix = config.model, first.model, f"starting from {config.start.run}: "
    names, rows = class_names(config) or [str(n) for n in range(here.num_classes)], classifier_rows(config, first)
    kept, new = ([name for name, row in zip(names, rows, strict=True) if (row < 0) == is_new] for is_new in (0, 1))
    if not kept:
        say(f"{prefix}a new classifier for {here.num_classes} classes, before {there.num_classes}")
    elif rows != list(range(there.num_classes)):
        news = f", new for {listed(new)}" if new else ""
        say(f"{prefix}the classifier keeps {len(kept)} of {there.num_classes} classes, by name: {listed(kept)}{news}")
    elif class_names(config) != class_names(first):
        say(f"{prefix}the classifier is kept; names of classes are not known on both sides: their order must agree")
    if tuple(here.image_shape) != tuple(there.image_shape):
        now, before = (f"{model.image_shape[0]}x{model.image_shape[1]}" for model in (here, there))
        has_tables = here.name == "attention" and issubclass(encoding_class(here.encoding), Learned | Relative)
        how = "; position tables are cropped or extended around shift zero" if has_tables else ""
        say(f"{prefix}images of {now} pixels, before {before}{how}")


def class_names(config: ConfigDict) -> tuple[str, ...]:
    """Returns the names of a run's classes, () unless there is one for each."""
    names = spec_of(config).class_names
    return names if len(names) == config.model.num_classes else ()


def classifier_rows(config: ConfigDict, first: ConfigDict) -> list[int]:
    """Returns by class which one of the first run it is, -1 for a new one: by name, where both have names.

    Otherwise as many classes are taken for the same, in their order, and another number for new ones.
    """
    here, there = class_names(config), class_names(first)
    if here and there:
        return [there.index(name) if name in there else -1 for name in here]
    count = config.model.num_classes
    return list(range(count)) if count == first.model.num_classes else [-1] * count


def transfer(model: nnx.Module, parameters: Arrays, statistics: Arrays, rows: Sequence[int]) -> nnx.Module:
    """Returns a network with the structure and types of `model` and the values of a trained one.

    `rows` says by class which entry of the trained classifier it takes, -1 for that of `model`; tables of shifts are
    resized to its image size. Raises UserError if another array depends on the image size.
    """
    skeleton, own, _ = split(model)
    of_class = np.asarray(rows)

    def taken(name: str, fresh: Array) -> Array:
        array = jnp.asarray(parameters[name])
        if name.startswith(HEAD):  # one entry per class on the last axis
            is_kept = np.broadcast_to(of_class >= 0, fresh.shape)
            return jnp.where(is_kept, array[..., np.maximum(of_class, 0)].astype(fresh.dtype), fresh)
        if array.shape != fresh.shape:
            if not name.endswith(TABLES):
                raise UserError(
                    f"config.start.run: {name} has the shape {array.shape} there and {fresh.shape} here, and cannot be "
                    "resized\nallowed is the image size of that run, or an encoding by shifts"
                )
            array = resized_table(array, len(fresh))
        return array.astype(fresh.dtype)

    return join(skeleton, {name: taken(name, fresh) for name, fresh in own.items()}, statistics)


def resized_table(table: Float[Array, "r d"], length: int) -> Float[Array, "s d"]:
    """Returns a table with a vector per shift, from `-(M - 1)` to `M - 1`, for another number of shifts, odd.

    Shift zero stays in the middle; shifts farther than the table reached get the vector of the farthest one.
    """
    reach, wanted = len(table) // 2, length // 2
    shifts = np.clip(np.arange(-wanted, wanted + 1), -reach, reach)
    return table[jnp.asarray(shifts + reach)]
