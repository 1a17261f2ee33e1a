"""Orbax checkpoints: asynchronous, atomic, checksummed, with the configuration inside.

A checkpoint has six parts: `network` (parameters and running statistics), `optimizer`, `config` (of the run), `data`
(fingerprint of what it trains on), `progress` (the metrics of the steps since the last training record) and `checksums`
(CRC-32 of the others); with a validation split also `metrics`, see manager.py. Those of version 0.1.0 and of imported
weights have no `data`.
"""

import contextlib
import copy
import errno
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from attn_cnn_jax.data.fingerprint import Fingerprint
from attn_cnn_jax.errors import shortened
from attn_cnn_jax.files import is_folder, read
from attn_cnn_jax.models.variables import Arrays
from attn_cnn_jax.runs.failures import Damaged, check_shown, damaged, not_saved, said_by_the_system, unreadable
from attn_cnn_jax.runs.manager import checksum_of_text, open_checkpoints, validation_accuracy
from attn_cnn_jax.runs.quiet import ignore_echoes


class TrainState(NamedTuple):
    """All that changes while a network learns; replicated on every device."""

    step: jax.Array  # scalar int32, number of finished steps
    parameters: Arrays
    statistics: Arrays  # running statistics of batch norm
    optimizer: optax.OptState


@contextlib.contextmanager
def saving(workdir: Path, config: ConfigDict) -> Iterator[ocp.CheckpointManager]:
    """Opens the checkpoints of a run in training; at the end all are complete, or NotSaved is raised."""
    ignore_echoes()
    checkpoints = open_checkpoints(workdir, config)
    try:
        yield checkpoints
        finish(checkpoints)
    finally:
        with contextlib.suppress(Exception):  # after an error, closing raises what was already said
            checkpoints.close()


def finish(checkpoints: ocp.CheckpointManager) -> None:
    """Waits for what is being saved in the background; raises NotSaved if that fails."""
    with not_saved(checkpoints):
        checkpoints.wait_until_finished()


def best_step(checkpoints: ocp.CheckpointManager, number: int = 0) -> int | None:
    """Returns the step with the best validation accuracy, of seed `number`; None where no checkpoint has one."""
    metrics = {step: checkpoints.metrics(step) for step in checkpoints.all_steps()}
    accuracy = {step: validation_accuracy(found, number) for step, found in metrics.items() if found}
    return max(accuracy, key=accuracy.__getitem__, default=None)


def save(
    checkpoints: ocp.CheckpointManager,
    step: int,
    state: TrainState,
    config: ConfigDict,
    progress: dict,
    metrics: dict | None = None,
    data: Fingerprint | None = None,
) -> None:
    """Starts to save a checkpoint in the background; it appears under its step once it is complete.

    What the caller does afterwards with what it gave does not reach the checkpoint.

    Raises:
      NotSaved: if this cannot begin, or the one before could not be completed.
    """
    if checkpoints.latest_step() == step:
        return
    arrays = {"network": network(state), "optimizer": state.optimizer}
    # Orbax holds on to arrays itself, donated ones too; plain values it takes up only as it writes them.
    plain = copy.deepcopy({"config": config.to_dict(), "progress": progress} | ({"data": data} if data else {}))
    checksums = {part: checksum(tree) for part, tree in arrays.items()}
    checksums |= {part: checksum_of_text(value) for part, value in (plain | {"metrics": metrics}).items()}
    with not_saved(checkpoints):
        checkpoints.save(
            step,
            metrics=copy.deepcopy(metrics),
            args=ocp.args.Composite(
                **{part: ocp.args.StandardSave(tree) for part, tree in arrays.items()},
                **{part: ocp.args.JsonSave(value) for part, value in (plain | {"checksums": checksums}).items()},
            ),
        )


def restore(checkpoints: ocp.CheckpointManager, step: int, like: TrainState) -> tuple[TrainState, dict]:
    """Returns the state at a step, placed as `like` is, and the `progress` saved with it.

    Raises:
      Damaged, failures.Unreadable: see `read_arrays`.
    """
    restored = read_arrays(checkpoints, step, "network", network(like))
    optimizer = read_arrays(checkpoints, step, "optimizer", like.optimizer)
    number = jax.device_put(jnp.full(like.step.shape, step, jnp.int32), like.step.sharding)
    state = TrainState(number, restored["parameters"], restored["statistics"], optimizer)
    return state, read_plain(checkpoints, step, "progress")


def all_steps(checkpoints: ocp.CheckpointManager) -> list[int]:
    """Returns the steps of all checkpoints, newest first, with those that Orbax leaves out as it cannot see them."""
    steps = steps_in(Path(checkpoints.directory))
    if not set(steps) <= set(checkpoints.all_steps()):
        checkpoints.reload()
    return steps


def steps_in(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints in a folder, newest first."""
    with os.scandir(folder) as entries:
        steps = [int(entry.name) for entry in entries if entry.name.isdigit() and entry.is_dir()]
    return sorted(steps, reverse=True)


def saved_config(workdir: Path) -> ConfigDict | None:
    """Returns the configuration inside the newest intact checkpoint, as saved; None where there is none.

    Raises:
      failures.Unreadable: if the system fails.
    """
    if not is_folder(workdir / "checkpoints"):
        return None
    with open_checkpoints(workdir, read_only=True) as checkpoints:
        for step in all_steps(checkpoints):
            with contextlib.suppress(Damaged):  # damaged: the loop says so, and goes on from an older one
                return ConfigDict(read_plain(checkpoints, step, "config"))
    return None


def network(state: TrainState) -> dict[str, dict]:
    """Returns the part of a state that makes predictions, as checkpoints keep it."""
    return {"parameters": state.parameters, "statistics": state.statistics}


def read_arrays(checkpoints: ocp.CheckpointManager, step: int, part: str, like: Any) -> Any:
    """Returns one part of a checkpoint, `network` or `optimizer`, with shapes, types and placement as in `like`.

    Raises:
      Damaged: if it lacks a file, or is not what was saved: not every flipped byte makes reading fail.
      failures.Unreadable: if the system fails.
    """
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    tree = _read(checkpoints, step, part, ocp.args.StandardRestore(abstract))
    _compare(checkpoints, step, part, checksum(tree))
    return tree


def read_plain(checkpoints: ocp.CheckpointManager, step: int, part: str) -> dict:
    """Returns one part of a checkpoint that is no array, `config` or `progress`; raises as `read_arrays` does."""
    value = _read_json(checkpoints, step, part)
    _compare(checkpoints, step, part, checksum_of_text(value))
    return value


def check_depth(checkpoints: ocp.CheckpointManager, step: int, num_layers: int) -> None:
    """Raises Damaged if a network has fewer arrays than layers: to build that many would take long, and be in vain."""
    try:
        content = json.loads(read(Path(checkpoints.directory, str(step), "network", "_METADATA")))
        count = len(content["tree_metadata"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return  # reading the arrays says more
    if count < num_layers:
        raise damaged(checkpoints, step, f"its network has {count} arrays, its configuration {num_layers} layers")


def read_data(checkpoints: ocp.CheckpointManager, step: int) -> Fingerprint | None:
    """Returns the fingerprint of the data of a run, None where it was not saved; raises as `read_arrays` does."""
    return read_plain(checkpoints, step, "data") if "data" in _read_json(checkpoints, step, "checksums") else None


def _compare(checkpoints: ocp.CheckpointManager, step: int, part: str, found: int) -> None:
    if _read_json(checkpoints, step, "checksums").get(part) != found:
        raise damaged(checkpoints, step, f"the checksum of its {part} is not the one saved")


def _read_json(checkpoints: ocp.CheckpointManager, step: int, part: str) -> dict:
    value = _read(checkpoints, step, part, ocp.args.JsonRestore())
    if not isinstance(value, dict):
        raise damaged(checkpoints, step, f"its {part} holds no JSON object")
    return value


def _read(checkpoints: ocp.CheckpointManager, step: int, part: str, how: ocp.args.CheckpointArgs) -> Any:
    # Orbax raises a bare Exception, and its threads print tracebacks of their own, for files that are not whole.
    # It takes for missing what the system fails to show: only what fails twice, with every file shown, is damaged.
    for _ in range(2):
        try:
            return checkpoints.restore(step, args=ocp.args.Composite(**{part: how}))[part]
        except Exception as error:
            ignore_echoes()
            reason, of_the_system = shortened(error), said_by_the_system(error)
        if of_the_system:
            raise unreadable(checkpoints, step, f"{of_the_system}, in its {part}")
        check_shown(checkpoints, step)
    raise damaged(checkpoints, step, f"its {part} cannot be read, {reason}")


def set_aside(checkpoints: ocp.CheckpointManager, workdir: Path, step: int) -> None:
    """Moves a damaged checkpoint out of the way, into `damaged/` of the run directory, from another disk too."""
    folder = Path(checkpoints.directory, str(step))
    aside = workdir / "damaged" / f"{step}-{time.time_ns()}"
    aside.parent.mkdir(exist_ok=True)
    try:
        os.rename(folder, aside)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(folder, aside)
        shutil.rmtree(folder)
    checkpoints.reload()


def lie_aside(workdir: Path) -> bool:
    """Returns whether a run has checkpoints in `damaged/`."""
    try:
        return bool(os.listdir(workdir / "damaged"))
    except FileNotFoundError:
        return False


def checksum(tree: Any) -> int:
    """Returns the CRC-32 of all arrays of a tree, in the order of its leaves."""
    crc = 0
    for leaf in jax.tree.leaves(tree):
        crc = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)).view(np.uint8).data, crc)
    return crc
