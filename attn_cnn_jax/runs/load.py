"""Reads a run back from its directory, or from a folder with exported weights."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from attn_cnn_jax.config import validate, with_defaults
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.errors import UserError, in_words
from attn_cnn_jax.files import is_folder
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import weights
from attn_cnn_jax.runs.checkpoints import (
    all_steps,
    best_step,
    check_depth,
    open_checkpoints,
    read_arrays,
    read_data,
    read_plain,
    steps_in,
)
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.pretrained import located
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.runs.seeds import pick, seeds_of
from attn_cnn_jax.runs.weights import is_weights


def load_run(workdir: str | Path, step: int | str = "latest", seed: int | None = None) -> Run:
    """Restores a run that training left, finished or not, on any number of devices, without its data.

    Args:
      workdir: the run directory, a folder that `export` wrote as safetensors, or `pretrained:NAME` (pretrained.py).
      step: "latest", "best" (by validation accuracy; only with a validation split), or the number of a step.
      seed: the seed of the run, or one seed of a run of several (seeds.py); None for the first.

    Raises:
      UserError: if there is no such run, step, seed, or intact checkpoint, or the system cannot read it now.
    """
    workdir = located(workdir)
    try:
        saved = read_config(workdir) if is_folder(workdir) else None
        if saved is None:
            raise UserError(
                f"{workdir} is not a run directory: it has no config.json; train one with train.py --workdir"
            )
        config = known_config(workdir, saved)
        if is_weights(workdir):
            return load_weights(workdir, config, step, seed)
        if not is_folder(workdir / "checkpoints"):
            raise UserError(f"{workdir} has no checkpoint yet")
        while True:
            known = steps_in(workdir / "checkpoints")
            try:
                return load_saved(workdir, saved, step, seed)
            except (UserError, OSError):
                # A training that goes on there may have removed what was being read: then there is a newer one.
                if known == steps_in(workdir / "checkpoints"):
                    raise
    except OSError as error:
        raise UserError(f"{workdir} cannot be read: {in_words(error)}") from error


def load_saved(workdir: Path, saved: ConfigDict, step: int | str, seed: int | None) -> Run:
    """Returns a run as `load_run` does, from its directory, and its configuration as it was saved there."""
    seeds, asked = seeds_of(saved), seed
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        allowed = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
        raise UserError(f"seed={seed!r}: {workdir} has {allowed}")
    with open_checkpoints(workdir, read_only=True) as checkpoints:
        number = find_step(checkpoints, workdir, step, seeds.index(seed))
        inside = ConfigDict(read_plain(checkpoints, number, "config"))
        if asked is not None and seeds_of(inside) != seeds:
            raise UserError(
                f"{workdir / 'config.json'} has seed {seeds[0]}, the checkpoint of step {number} has "
                f"{seeds_of(inside)[0]}, with which it was trained\nrestore config.json as training wrote it"
            )
        config = known_config(workdir, inside)
        check_depth(checkpoints, number, config.model.get("num_layers", 0))
        skeleton, parameters, statistics = split(abstract_model(config.model))
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        several = (len(seeds),) if len(seeds) > 1 else ()
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(several + x.shape, x.dtype, sharding=here),
            {"parameters": parameters, "statistics": statistics},
        )
        data = read_data(checkpoints, number)
        network = pick(read_arrays(checkpoints, number, "network", like), seeds, seed)
    model = join(skeleton, network["parameters"], network["statistics"])
    assert isinstance(model, AttentionClassifier | ResNet)
    several_seed = seed if several else None
    return Run(config, number, model, several_seed, find_test(workdir, number, several_seed), data)


def load_weights(folder: Path, config: ConfigDict, step: int | str, seed: int | None) -> Run:
    """Returns the network of a folder without checkpoints, see weights.py; UserError if it has another step or seed."""
    model, number = weights.read(folder, config)
    if step not in ("latest", number):
        raise UserError(f"step={step!r}: {folder} holds one network, of step {number}")
    if seed not in (None, config.seed):
        raise UserError(f"seed={seed!r}: {folder} has seed {config.seed} alone")
    assert isinstance(model, AttentionClassifier | ResNet)
    return Run(config, number, model, test=find_test(folder, number))


def find_test(workdir: Path, step: int, seed: int | None = None) -> dict[str, Any] | None:
    """Returns the record of metrics.jsonl with the test accuracy at a step; None where there is none to be read."""
    try:
        records = read_metrics(workdir / "metrics.jsonl")
    except (UserError, OSError):  # a network is whole without it
        return None
    found = [each for each in records if each["split"] == "test" and each["step"] == step and each.get("seed") == seed]
    return found[-1] if found else None


def known_config(workdir: Path, config: ConfigDict) -> ConfigDict:
    """Returns a saved configuration with the keys of today; UserError if it has what is not known here."""
    config = with_defaults(config)
    try:
        validate(config)
    except UserError as error:
        raise UserError(f"{workdir} was trained by another version of attn-cnn-jax: {error}") from error
    return config


def find_step(checkpoints: ocp.CheckpointManager, workdir: Path, step: int | str, number: int) -> int:
    """Returns the step of the checkpoint that `step` names, UserError where there is none.

    Args:
      checkpoints: of the run.
      workdir: the run directory, for messages.
      step: as in `load_run`.
      number: of the seed, from 0, whose validation accuracy is the best.
    """
    known = all_steps(checkpoints)
    if not known:
        raise UserError(f"{workdir} has no checkpoint yet")
    found = known[0] if step == "latest" else best_step(checkpoints, number) if step == "best" else step
    if step == "best" and found is None:
        raise UserError(f"{workdir} has no best checkpoint: train with config.dataset.num_validation above 0")
    if found not in known:
        raise UserError(f"step={step!r}: {workdir} has checkpoints of steps {', '.join(map(str, reversed(known)))}")
    return found
