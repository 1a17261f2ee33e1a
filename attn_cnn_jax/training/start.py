"""Begins a run: a new network, or a finished run pruned, with heads reset, or, a ResNet, as attention.

`config.start` says which; a ResNet's convolutions become attention where `config.model.layers` says so (Theorem 1).
Or, without a run, every layer begins as one kernel, or the embedding whitens the patches of training pictures.

What was removed or reset stands in the configuration inside every checkpoint, and the first checkpoint is written
before the first step: a run needs the one it started from only once.
"""

import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict
from tabulate import tabulate

from attn_cnn_jax.config import create_model, with_defaults
from attn_cnn_jax.config.network import grid, heads_by_layer
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.builders import Spec
from attn_cnn_jax.data.sources import Split
from attn_cnn_jax.data.stored import Stored
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import read
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.classifier import space_to_depth
from attn_cnn_jax.models.grid import start_on_grid
from attn_cnn_jax.models.pruning import Heads, degenerate_heads, fixed, prune, reset
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.models.whitening import whitening
from attn_cnn_jax.runs.checkpoints import saved_config
from attn_cnn_jax.runs.directory import MAY_CHANGE, MAY_GROW, read_config
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.pretrained import located
from attn_cnn_jax.runs.seeds import seeds_of
from attn_cnn_jax.theorem.to_attention import convolutions_to_attention
from attn_cnn_jax.training.distributed.agreement import say
from attn_cnn_jax.training.transfer import changes, reset_heads, take_over

WHITENED_FROM = 5_000  # pictures
# What may differ between a run and the one that it starts from; the rest shapes the parameters.
INITIAL = ("init", "init_values", "locality", "sharpness", "centre_std", "spread_std")
Reasons = Mapping[int, Mapping[int, str]]  # `Heads` with the reason of each
MAY_DIFFER = (
    "num_classes",
    "image_shape",
    "num_heads",
    "dropout",
    "attention_dropout",
    "attention_dropout_on",
    "implementation",
    "dtype",
    *INITIAL,
)


class Beginning(NamedTuple):
    """What training begins with.

    Attributes:
      config: with `model.num_heads` and `start.heads` as pruning or resetting left them.
      model: the network.
      heads: those pruned or reset, one dictionary each: `layer` and `head` from 1, `reason`, and the encoding's
        `measures`; empty where the run directory has a checkpoint.
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
    if not config.start.run and not config.start.kernel:
        return Beginning(config, create_model(config.model, rngs=nnx.Rngs(seed)))
    saved = saved_config(workdir)
    if saved is not None:
        saved = with_defaults(saved)
        for room, key in (name.split(".") for name in (*MAY_CHANGE, *MAY_GROW)):
            saved[room][key] = config[room][key]
        return Beginning(saved, create_model(saved.model, rngs=nnx.Rngs(seed)))
    if config.start.kernel:
        return Beginning(config, create_from_kernel(config))
    origin = located_at_home(config.start.run)
    first = load_run(origin, seed=seed if has_several_seeds(origin) else None)
    if (first.config.model.get("layers"), config.model.get("layers")) == ("convolution", "attention"):
        first.config.model.layers = "attention"
        first = first._replace(model=convolutions_to_attention(first.model, config.model.sharpness))
    check_same_kind(config, first.config)
    if config.model.num_classes != first.config.model.num_classes:
        config = ConfigDict(config.to_dict() | {"start": config.start.to_dict() | {"new_head": True}})
    for change in changes(config, first.config):
        say(f"starting from {config.start.run}: {change}")
    parameters, statistics = split(first.model)[1:]
    if config.model.name == "resnet":
        fresh = create_model(config.model, rngs=nnx.Rngs(seed))
        model = take_over(fresh, parameters, statistics, new_head=config.start.new_head)
        return Beginning(config, model)
    assert isinstance(first.model, AttentionClassifier)
    counts = heads_by_layer(first.config.model)
    chosen = choose(config, first.model, counts)
    heads = described(first.model, chosen)
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
    return Beginning(config, take_over(fresh, parameters, statistics, new_head=config.start.new_head), heads)


def located_at_home(run: str) -> Path:
    """Returns the directory of `config.start.run`, where `~` is the home folder; UserError where that is not known."""
    try:
        return located(run).expanduser()
    except RuntimeError:
        raise UserError(f"config.start.run={run!r}: the home folder is not known, HOME is not set") from None


def has_several_seeds(workdir: Path) -> bool:
    """Returns whether a run is one of several seeds, of which each goes on as the same seed (runs/seeds.py)."""
    saved = read_config(workdir)
    return saved is not None and len(seeds_of(saved)) > 1


def create_from_kernel(config: ConfigDict) -> nnx.Module:
    """Returns a new network whose layers all begin as the convolution in the file `config.start.kernel`."""
    path = config.start.kernel
    try:
        kernel = np.lib.format.read_array(io.BytesIO(read(os.path.expanduser(path))), allow_pickle=False)
    except OSError as error:
        raise UserError(f"config.start.kernel={path!r} cannot be read: {error}") from error
    except Exception as error:  # of the Python parser through which NumPy reads type and shape
        raise UserError(f"config.start.kernel={path!r} is no array of numbers as numpy.save writes it") from error
    model = create_model(config.model, rngs=nnx.Rngs(config.seed))
    for block in model.blocks:
        size = math.isqrt(block.attention.num_heads)
        shape = (size, size, config.model.hidden_size, config.model.hidden_size)
        if kernel.shape != shape or kernel.dtype.kind != "f":
            found = f"{kernel.shape} {kernel.dtype}"
            raise UserError(f"config.start.kernel={path!r} holds {found}: allowed is {shape}, floating point")
        if not np.isfinite(kernel).all():
            raise UserError(f"config.start.kernel={path!r} holds numbers that are not finite: save it anew")
        start_on_grid(block.attention, config.model.locality, kernel)
    return model


def whiten(model: AttentionClassifier, pictures: Split | Stored, spec: Spec) -> None:
    """Sets the embedding of a new network so that it whitens patches of training pictures (models/whitening.py).

    Args:
      model: without a stem.
      pictures: of the training split; up to `WHITENED_FROM` of them, evenly spaced, are read.
      spec: of the data set; its mean and standard deviation normalise the pictures.
    """
    count = len(pictures.labels)
    chosen = np.linspace(0, count - 1, min(count, WHITENED_FROM)).astype(int)
    images = pictures.at(chosen).images if isinstance(pictures, Stored) else pictures.images[chosen]
    patches = np.asarray(space_to_depth(normalise(images, spec.mean, spec.std), model.downsample))
    embedding = model.embedding
    assert embedding.bias is not None
    weight, bias = whitening(np.asarray(embedding.kernel[...]), patches.reshape(-1, patches.shape[-1]))
    embedding.kernel[...], embedding.bias[...] = jnp.asarray(weight), jnp.asarray(bias)


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


def described(model: AttentionClassifier, chosen: Reasons) -> tuple[dict, ...]:
    """Returns one dictionary per chosen head, see `Beginning.heads`; numbers that are not finite as text."""
    rows = []
    for layer, head in named(chosen):
        measures = model.blocks[layer - 1].attention.position.measures()
        values = {name: float(f"{array[head - 1]:.4g}") for name, array in measures.items()}
        values = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        rows.append({"layer": layer, "head": head, "reason": chosen[layer - 1][head - 1]} | values)
    return tuple(rows)


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
    values["model"] |= {"init": "paper", "init_values": "random"}  # heads that are left need not fill a grid
    values["start"]["heads"] = named(chosen)
    return ConfigDict(values)


def check_same_kind(config: ConfigDict, first: ConfigDict) -> None:
    """Raises UserError, naming what differs, unless the parameters of the first run fit this network."""
    there, here = first.model.to_dict(), config.model.to_dict()
    comparable = lambda value: list(value) if isinstance(value, tuple) else value  # noqa: E731
    differing = [
        f"config.model.{key} ({there.get(key)!r} there, {here.get(key)!r} here)"
        for key in sorted(there | here)
        if key not in MAY_DIFFER and comparable(there.get(key)) != comparable(here.get(key))
    ]
    if there["image_shape"][2] != here["image_shape"][2]:
        differing.append(f"config.model.image_shape ({there['image_shape']!r} there, {here['image_shape']!r} here)")
    if not may_have_heads_of(config.model, first.model):
        differing.append(f"config.model.num_heads ({there['num_heads']} there, {here['num_heads']} here)")
    if differing:
        raise UserError(
            f"config.start.run={config.start.run!r} is another network: {', '.join(differing)}\n"
            "set them as they are there"
        )


def may_have_heads_of(model: ConfigDict, first: ConfigDict) -> bool:
    """Returns whether a network may take over the heads of a first one; True where either has none."""
    asked, found = model.get("num_heads"), first.get("num_heads")
    if asked == found or asked is None or found is None:
        return True
    if isinstance(asked, int) and not isinstance(found, int):
        return True  # the first was pruned: what is left is taken over
    return heads_by_layer(model) == heads_by_layer(first)


def check_some_left(counts: tuple[int, ...], chosen: Heads) -> None:
    """Raises UserError if a layer would lose all its heads."""
    empty = [str(layer + 1) for layer, count in enumerate(counts) if len(chosen.get(layer, ())) == count]
    if empty:
        raise UserError(
            f"config.start.prune: no head would be left in layer {', '.join(empty)}, all are degenerate or named\n"
            "reset them with config.start.reset=True, or name those to remove in config.start.heads"
        )


def fixed_entries(config: ConfigDict, model: nnx.Module) -> dict[str, np.ndarray]:
    """Returns which entries of the parameters training leaves alone, by name: those of surviving heads.

    Boolean arrays that broadcast to the parameters, see pruning.fixed.
    """
    if not isinstance(model, AttentionClassifier):
        return {}
    return fixed(
        model,
        reset_heads(config),
        positions=config.start.freeze_positions,
        values=config.start.freeze_values,
    )
