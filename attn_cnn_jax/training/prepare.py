"""All of a run that can refuse, before anything is written: configuration, data, devices, first or saved state."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.config import complete
from attn_cnn_jax.config.checks import check_counts
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.audit import lines_on_training
from attn_cnn_jax.data.sets import (
    Dataset,
    Fingerprint,
    Split,
    fingerprint,
    is_own,
    lacking,
    source_of,
    split_validation,
)
from attn_cnn_jax.models.pruning import frozen_mask
from attn_cnn_jax.models.variables import Skeleton
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training import hosts
from attn_cnn_jax.training.feed import Feed
from attn_cnn_jax.training.hosts import say
from attn_cnn_jax.training.initialise import initial_network
from attn_cnn_jax.training.mesh import check_memory, device_memory, mesh_for, place
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate, matrices
from attn_cnn_jax.training.resume import restore
from attn_cnn_jax.training.step import initial_state


class Schedule(NamedTuple):
    """Schedule of a run in steps. An incomplete last batch is dropped."""

    config: ConfigDict
    steps_per_epoch: int

    @property
    def total_steps(self) -> int:
        """Number of steps in the run."""
        return self.config.train.num_epochs * self.steps_per_epoch

    def due(self, step: int, every_epochs: int) -> bool:
        """Returns whether what is due every few epochs is due after a step; all is after the last one."""
        epoch, rest = divmod(step, self.steps_per_epoch)
        return not rest and (epoch % every_epochs == 0 or step == self.total_steps)

    def ahead(self, step: int) -> int:
        """Returns how many steps it is from a step to the next record or the end of the epoch."""
        every = self.config.train.log_every_steps
        return min(every - step % every, self.steps_per_epoch - step % self.steps_per_epoch)


class Prepared(NamedTuple):
    """A run that nothing refuses any more, at its first step or that of its newest checkpoint."""

    config: ConfigDict  # with what the data set determines, and the heads that pruning left
    workdir: Path
    mesh: Mesh
    schedule: Schedule
    rate: Callable  # the learning rate by step
    optimizer: optax.GradientTransformation
    skeleton: Skeleton
    state: TrainState  # on the devices of `mesh`
    progress: dict[str, list[float]]  # metrics of the steps since the last training record
    feed: Feed
    splits: dict[str, Split]  # that are evaluated
    data: Fingerprint
    is_new: bool  # whether there is no checkpoint yet


def prepare(config: ConfigDict, workdir: Path, stack: contextlib.ExitStack) -> Prepared:
    """Returns a run ready for its next step; the run directory is held, by `stack`, and has its `config.json`.

    Raises UserError for a configuration, data or a run directory that cannot be trained with: then no run directory is
    left behind that was not there. Of several processes all do the same.
    """
    config = complete(config)
    hosts.check_same(hosts.settings(config))
    ckpt.check_folder(workdir)
    config, dataset, streamed = with_data(config)
    mesh = mesh_for(config.train.batch_size)
    check_memory(config.model)
    if hosts.is_main():
        stack.enter_context(directory.locked(workdir))
    hosts.check_shared(workdir)

    asked = config
    config, model = initial_network(config, workdir)
    train_set, splits = divided(dataset, config)
    schedule = Schedule(config, len(train_set.labels) // config.train.batch_size)
    rate = learning_rate(config.optimizer, config.train.num_epochs, schedule.steps_per_epoch)
    optimizer = create_optimizer(config.optimizer, rate, frozen_mask(config.start, model), shaped=matrices(model))
    skeleton, state = initial_state(model, optimizer)
    data = fingerprint(dataset, splits.get("validation"))
    if jax.process_count() > 1:
        parameters = ckpt.checksum(state.parameters)
        hosts.check_same({"the data (its fingerprint)": data, "the parameters at the start": parameters})
    feed = Feed(train_set, config, mesh, streamed=streamed)
    stack.enter_context(contextlib.closing(feed))
    state, progress = restore(config, workdir, place(state, mesh), data)
    if hosts.is_main():
        directory.claim(workdir, asked)
    is_new = not ckpt.steps_in(workdir)
    return Prepared(
        config, workdir, mesh, schedule, rate, optimizer, skeleton, state, progress, feed, splits, data, is_new
    )


def with_data(config: ConfigDict) -> tuple[ConfigDict, Dataset, bool]:
    """Returns a configuration complete with what its data set determines, the data set, and whether it is streamed."""
    dataset, streamed = load_data(config.dataset)
    count, fits = len(dataset.train.labels), not (config.train.batch_size and config.train.num_epochs)
    config = complete(config, dataset.spec, count)
    if fits:
        size, epochs = config.train.batch_size, config.train.num_epochs
        say(f"{count:,} training images: batch size {size}, number of epochs {epochs}")
    check_counts(config.train.batch_size, config.dataset, count)
    return config, dataset, streamed


def load_data(dataset: ConfigDict) -> tuple[Dataset, bool]:
    """Returns the data set of `config.dataset`, and whether it is to be streamed from the disk."""
    source, data_dir = source_of(dataset), dataset.data_dir or None
    data = sources.load(source, data_dir)
    memory = min(device_memory(), sources.machine_memory())
    is_large = dataset.feed == "auto" and data.nbytes > sources.MEMORY_SHARE * memory
    if is_large:
        say(
            f"the images take {data.nbytes / 1e9:,.1f} GB, more than a quarter of the {memory / 1e9:,.1f} GB of "
            "memory: streamed from the disk"
        )
    for line in data.notes:
        say(f"{source.words}: {line}")
    return data, any(hosts.everyone(is_large or dataset.feed == "stream"))  # all processes run the same program


def divided(dataset: Dataset, config: ConfigDict) -> tuple[Split, dict[str, Split]]:
    """Returns the images that are trained on, and the splits that are evaluated by name; says what is odd in them."""
    train_set, validation = dataset.train, dataset.validation
    if config.dataset.num_validation:
        train_set, validation = split_validation(train_set, config.dataset.num_validation, config.seed)
        if line := lacking(validation, dataset.spec):
            say(line)
    for line in lines_on_training(config, train_set) if is_own(config.dataset.name) else ():
        say(line)
    return train_set, ({} if validation is None else {"validation": validation}) | {"test": dataset.test}
