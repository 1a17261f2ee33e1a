"""Orbax checkpoints: asynchronous, atomic, with the configuration inside; and a run read back from them.

A checkpoint has five parts: `network` (parameters and running statistics), `optimizer`, `config` (the run's
configuration), `progress` (the metrics of the steps since the last line of metrics.jsonl) and `checksums`.
"""

import contextlib
import gc
import io
import json
import logging
import os
import time
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from orbax.checkpoint.checkpoint_managers import preservation_policy

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.step import TrainState


class Damaged(UserError):
    """A checkpoint that cannot be read, or is not what was saved."""


def open_checkpoints(
    workdir: Path, config: ConfigDict | None = None, *, steps_per_epoch: int = 1, read_only: bool = False
) -> ocp.CheckpointManager:
    """The checkpoints of a run directory.

    Keeps the last `config.checkpoint.keep_last`, one every `keep_every_epochs` epochs, and, where there is
    a validation split, the one with the best validation accuracy; never chooses on test data.
    """
    policies = []
    if config is not None:
        policies = [preservation_policy.LatestN(config.checkpoint.keep_last)]
        if config.checkpoint.keep_every_epochs:
            every = config.checkpoint.keep_every_epochs * steps_per_epoch
            policies.append(preservation_policy.EveryNSteps(every))
        if config.dataset.num_validation:
            best = preservation_policy.BestN(
                get_metric_fn=validation_accuracy, n=1, keep_checkpoints_without_metrics=False
            )
            policies.append(best)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=preservation_policy.AnyPreservationPolicy(policies) if policies else None,
        best_fn=validation_accuracy if config is not None and config.dataset.num_validation else None,
        read_only=read_only,
        create=not read_only,
        save_interval_steps=0 if read_only else 1,
        cleanup_tmp_directories=not read_only,
    )
    return ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options)


# Reading a finished run is no reason for a warning.
logging.getLogger("absl").addFilter(lambda record: "directory is read only" not in record.getMessage())


def validation_accuracy(metrics: dict) -> float:
    return metrics["validation_accuracy"]


def best_step(checkpoints: ocp.CheckpointManager) -> int | None:
    """The step with the best validation accuracy among those that have one."""
    accuracy = {
        step: checkpoints.metrics(step)["validation_accuracy"]
        for step in checkpoints.all_steps()
        if checkpoints.metrics(step)
    }
    return max(accuracy, key=accuracy.get, default=None)


def save(
    checkpoints: ocp.CheckpointManager,
    step: int,
    state: TrainState,
    config: ConfigDict,
    progress: dict,
    metrics: dict | None = None,
) -> None:
    """Starts to save a checkpoint in the background; it appears under its step once it is complete."""
    if checkpoints.latest_step() == step:
        return
    arrays = {"network": network(state), "optimizer": state.optimizer}
    plain = {"config": config.to_dict(), "progress": progress}
    checksums = {part: checksum(tree) for part, tree in arrays.items()}
    checksums |= {part: checksum_of_text(value) for part, value in plain.items()}
    checkpoints.save(
        step,
        metrics=metrics,
        args=ocp.args.Composite(
            **{part: ocp.args.StandardSave(tree) for part, tree in arrays.items()},
            **{part: ocp.args.JsonSave(value) for part, value in (plain | {"checksums": checksums}).items()},
        ),
    )


def restore(checkpoints: ocp.CheckpointManager, step: int, like: TrainState) -> tuple[TrainState, dict]:
    """The state at a step, placed as `like` is, and the `progress` saved with it.

    Raises:
      Damaged: see `read_arrays`.
    """
    restored = read_arrays(checkpoints, step, "network", network(like))
    optimizer = read_arrays(checkpoints, step, "optimizer", like.optimizer)
    number = jax.device_put(jnp.int32(step), like.step.sharding)
    state = TrainState(number, restored["parameters"], restored["statistics"], optimizer)
    return state, read_plain(checkpoints, step, "progress")


def saved_config(workdir: Path) -> ConfigDict | None:
    """The configuration inside a run's newest checkpoint that can be read, None where there is none."""
    if not (workdir / "checkpoints").is_dir():
        return None
    with open_checkpoints(workdir, read_only=True) as checkpoints:
        for step in sorted(checkpoints.all_steps(), reverse=True):
            with contextlib.suppress(Damaged):  # damaged: the loop says so, and goes on from an older one
                return ConfigDict(read_plain(checkpoints, step, "config"))
    return None


def network(state: TrainState) -> dict[str, dict]:
    """The part of a state that makes predictions, as checkpoints keep it."""
    return {"parameters": state.parameters, "statistics": state.statistics}


def read_arrays(checkpoints: ocp.CheckpointManager, step: int, part: str, like: Any) -> Any:
    """One part of a checkpoint, `network` or `optimizer`, with shapes, types and placement as in `like`.

    Raises:
      Damaged: if it cannot be read, or is not what was saved: not every flipped byte makes reading fail.
    """
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    tree = _read(checkpoints, step, part, ocp.args.StandardRestore(abstract))
    _compare(checkpoints, step, part, checksum(tree))
    return tree


def read_plain(checkpoints: ocp.CheckpointManager, step: int, part: str) -> dict:
    """One part of a checkpoint that is no array, `config` or `progress`; raises Damaged."""
    value = _read_json(checkpoints, step, part)
    _compare(checkpoints, step, part, checksum_of_text(value))
    return value


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
    noise = io.StringIO()
    try:
        with contextlib.redirect_stderr(noise):
            return checkpoints.restore(step, args=ocp.args.Composite(**{part: how}))[part]
    except Exception as error:
        with contextlib.redirect_stderr(noise):
            reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
            error.__traceback__ = None
            gc.collect()
        raise damaged(checkpoints, step, f"its {part} cannot be read, {reason}") from None


def damaged(checkpoints: ocp.CheckpointManager, step: int, reason: str) -> Damaged:
    return Damaged(f"the checkpoint of step {step} in {checkpoints.directory} is damaged: {reason}")


def set_aside(checkpoints: ocp.CheckpointManager, step: int) -> None:
    """Moves a damaged checkpoint out of the way, into `damaged/` beside `checkpoints/`."""
    folder = Path(checkpoints.directory)
    aside = folder.parent / "damaged" / f"{step}-{time.time_ns()}"
    aside.parent.mkdir(exist_ok=True)
    os.rename(folder / str(step), aside)
    checkpoints.reload()


def checksum(tree: Any) -> int:
    """CRC-32 of all arrays of a tree, in the order of its leaves."""
    crc = 0
    for leaf in jax.tree.leaves(tree):
        crc = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8), crc)
    return crc


def checksum_of_text(value: dict) -> int:
    """CRC-32 of plain values, by what they look like in JSON."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())
