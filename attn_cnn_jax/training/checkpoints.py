"""Orbax checkpoints: asynchronous, atomic, with the configuration inside; and a run read back from them.

A checkpoint has four parts: `network` (parameters and running statistics), `optimizer`, `config` (the run's
configuration) and `progress` (the metrics of the steps since the last line of metrics.jsonl).
"""

import logging
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from orbax.checkpoint.checkpoint_managers import preservation_policy

from attn_cnn_jax.training.step import TrainState


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
    checkpoints.save(
        step,
        metrics=metrics,
        args=ocp.args.Composite(
            network=ocp.args.StandardSave(network(state)),
            optimizer=ocp.args.StandardSave(state.optimizer),
            config=ocp.args.JsonSave(config.to_dict()),
            progress=ocp.args.JsonSave(progress),
        ),
    )


def restore(checkpoints: ocp.CheckpointManager, step: int, like: TrainState) -> tuple[TrainState, dict]:
    """The state at a step, placed as `like` is, and the `progress` saved with it."""

    def abstract(tree):
        return ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, tree))

    restored = checkpoints.restore(
        step,
        args=ocp.args.Composite(
            network=abstract(network(like)),
            optimizer=abstract(like.optimizer),
            progress=ocp.args.JsonRestore(),
        ),
    )
    number = jax.device_put(jax.numpy.int32(step), like.step.sharding)
    state = TrainState(number, restored.network["parameters"], restored.network["statistics"], restored.optimizer)
    return state, restored.progress


def saved_config(checkpoints: ocp.CheckpointManager) -> ConfigDict | None:
    """The configuration inside the newest checkpoint, None where there is none."""
    step = checkpoints.latest_step()
    if step is None:
        return None
    return ConfigDict(checkpoints.restore(step, args=ocp.args.Composite(config=ocp.args.JsonRestore())).config)


def network(state: TrainState) -> dict[str, dict]:
    """The part of a state that makes predictions, as checkpoints keep it."""
    return {"parameters": state.parameters, "statistics": state.statistics}
