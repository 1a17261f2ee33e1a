"""All that a run trains with and that stays the same while it does: its data, compiled functions."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.config import spec_of
from attn_cnn_jax.data.fingerprint import Fingerprint, fingerprint
from attn_cnn_jax.data.sources import split_validation
from attn_cnn_jax.data.stored import AnyDataset, Stored
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.models.variables import Skeleton
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.distributed.agreement import say
from attn_cnn_jax.training.evaluate import create_evaluate, create_evaluate_streamed
from attn_cnn_jax.training.feed import OnDevice, Streamed, padded, to_evaluate
from attn_cnn_jax.training.mesh import place, platform_of
from attn_cnn_jax.training.muon import matrices
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.start import Beginning, held
from attn_cnn_jax.training.step import create_train_steps, initial_state


class Plan(NamedTuple):
    """What `train` in loop.py needs of a run; see `create_plan`."""

    config: ConfigDict
    workdir: Path
    mesh: Mesh
    feed: OnDevice | Streamed  # the training set
    eval_sets: dict[str, Any]  # by split; what `evaluate` takes
    schedule: optax.Schedule
    skeleton: Skeleton
    train_steps: jax.stages.Wrapped  # see step.create_train_steps
    evaluate: Callable[..., dict[str, jax.Array]]
    data: Fingerprint  # of the data set and its validation split
    implementations: str  # how attention is computed, in words

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch; an incomplete batch at its end is left out."""
        return len(self.feed) // self.config.train.batch_size

    @property
    def total_steps(self) -> int:
        """Number of steps in the run."""
        return self.config.train.num_epochs * self.steps_per_epoch

    def due(self, epoch: int, every: int) -> bool:
        """Returns whether what is due every `every` epochs (0: never) is due after this one; it is after the last."""
        return every > 0 and (epoch == self.config.train.num_epochs or epoch % every == 0)

    def records(self, step: int) -> list[tuple[int, str]]:
        """Returns step and split of all records of metrics up to a step."""
        every = self.config.train.log_every_steps
        ends = [step] if step == self.total_steps and step % every else []
        trained = [(n, "train") for n in [*range(every, step + 1, every), *ends]]
        epochs = range(1, step // self.steps_per_epoch + 1)
        evaluated = [epoch for epoch in epochs if self.due(epoch, self.config.train.eval_every_epochs)]
        return trained + [(epoch * self.steps_per_epoch, split) for epoch in evaluated for split in self.eval_sets]

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step, from 0."""
        with jax.transfer_guard("allow"):  # computed operation by operation
            return float(np.asarray(self.schedule(step)))


def create_plan(beginning: Beginning, workdir: Path, mesh: Mesh, dataset: AnyDataset) -> tuple[Plan, TrainState]:
    """Returns the plan of a run, and its state before the first step, on all devices.

    Args:
      beginning: the network and its configuration, from `begin`.
      workdir: the run directory.
      mesh: the devices that a batch is split over.
      dataset: the data set that the configuration names; one that is stored is streamed.
    """
    config, model, _ = beginning
    spec = spec_of(config)
    train_set, validation = dataset.train, dataset.validation
    if config.dataset.num_validation:
        train_set, validation = split_validation(train_set, config.dataset.num_validation, config.seed)
    eval_sets = ({} if validation is None else {"validation": validation}) | {"test": dataset.test}
    steps_per_epoch = len(train_set.labels) // config.train.batch_size
    schedule = learning_rate(config.optimizer, config.train.num_epochs, steps_per_epoch)
    fixed, frozen = held(config, model)
    optimizer = create_optimizer(config.optimizer, schedule, fixed, frozen=frozen, shaped=matrices(model))
    skeleton, state = initial_state(model, optimizer)
    if isinstance(train_set, Stored):
        feed, evaluate = Streamed(train_set, config, mesh), create_evaluate_streamed(config, mesh, skeleton, spec)
    else:
        feed, evaluate = OnDevice(train_set, mesh), create_evaluate(config, mesh, skeleton, spec)
    plan = Plan(
        config=config,
        workdir=workdir,
        mesh=mesh,
        feed=feed,
        eval_sets={name: to_evaluate(pictures, mesh) for name, pictures in eval_sets.items()},
        schedule=schedule,
        skeleton=skeleton,
        train_steps=create_train_steps(config, mesh, skeleton, optimizer, spec),
        evaluate=evaluate,
        data=fingerprint(dataset, validation, 0),
        implementations=implementations_in_words(config, mesh, for_platform(model, platform_of(mesh))),
    )
    return plan, place(state, mesh)


def compiled(plan: Plan, state: TrainState) -> jax.stages.Compiled:
    """Returns the compiled training steps; says how long that took, and what is ahead."""
    started = time.monotonic()
    train_steps = plan.train_steps.lower(state, plan.feed.like(), place(np.int32(1), plan.mesh)).compile()
    seconds, steps_to_go = time.monotonic() - started, plan.total_steps - int(jax.device_get(state.step))
    say(f"step compiled in {seconds:.1f} s; {steps_to_go} steps to go{plan.implementations}")
    return train_steps


def implementations_in_words(config: ConfigDict, mesh: Mesh, model: nnx.Module) -> str:
    """Returns which attention implementations run, for the log; "" for a network that has none to choose."""
    if not isinstance(model, AttentionClassifier):
        return ""
    training, evaluation = implementations(config, mesh, model)
    differs = f", {evaluation} in evaluation" if evaluation != training else ""
    return f"; attention implementation: {training}{differs}"


def implementations(config: ConfigDict, mesh: Mesh, model: AttentionClassifier) -> list[str]:
    """Returns the names of the attention implementations that run in training and in evaluation, by their batches."""
    batches = ((True, config.train.batch_size), (False, padded(config.train.eval_batch_size, mesh)))
    names = (model.implementations(batch, config.model.image_shape, training=t) for t, batch in batches)
    return ["/".join(sorted(set(each))) for each in names]
