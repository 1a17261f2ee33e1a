"""Trains a run to its end: from the newest checkpoint on, for each dispatch: step, record, evaluate, save."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from attn_cnn_jax.config import complete
from attn_cnn_jax.data import sources, stored
from attn_cnn_jax.data.builders import recipe_of
from attn_cnn_jax.errors import UserError, in_words
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory, metrics
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.distributed.agreement import Interrupted, agree, is_main, say, stop_requests
from attn_cnn_jax.training.distributed.comparison import (
    check_same,
    check_same_devices,
    check_shared,
    everyone,
    settings,
)
from attn_cnn_jax.training.feed import Streamed
from attn_cnn_jax.training.hints import SECONDS_TO_ESTIMATE, long_run, not_learning
from attn_cnn_jax.training.limits import (
    check_counts,
    check_memory,
    choose_feed,
    device_memory,
    unused_devices,
)
from attn_cnn_jax.training.loggers import module_of
from attn_cnn_jax.training.mesh import mesh_for, place
from attn_cnn_jax.training.plan import Plan, compiled, create_plan
from attn_cnn_jax.training.reporter import NOTHING, SilentReporter, create_reporter
from attn_cnn_jax.training.resume import EMPTY, Window, restore, say_missing
from attn_cnn_jax.training.start import Beginning, begin, heads_in_words
from attn_cnn_jax.training.step import most_steps

# Short enough to stop soon when asked; long enough to hide the host's work and, on CPUs, what new memory costs in every
# dispatch, a twentieth of a second for 170 MB.
SECONDS_PER_DISPATCH = 2.0


def run(config: ConfigDict, workdir: Path | str) -> dict[str, dict]:
    """Trains as configured, from the newest checkpoint in `workdir` on.

    Args:
      config: what a file in configs/ returns.
      workdir: run directory; created if need be.

    Returns:
      The last record of metrics of every split, by the name of the split.

    Raises:
      UserError: for a configuration, data or a run directory that cannot be trained with.
      Interrupted: after SIGTERM or Ctrl-C, once the state is saved.
    """
    config, workdir = complete(config), Path(workdir)
    check_same_devices(jax.devices())
    check_same(settings(config))
    mesh = mesh_for(config.train.batch_size)
    module_of(config.train.logger)
    ckpt.check_folder(workdir)
    dataset = load_data(config.dataset)
    config = complete(config, dataset.spec)
    for line in sources.describe(config.dataset):
        say(line)
    check_memory(config)
    check_counts(config, len(dataset.train.labels))
    with held(workdir, config) as claim:
        check_shared(workdir)
        beginning = begin(config, workdir)
        plan, state = create_plan(beginning, workdir, mesh, dataset)
        check_same_begin(plan, state)
        claim(beginning)  # only now: what cannot begin leaves no run directory behind
        hint(unused_devices(config.train.batch_size, mesh))
        if beginning.heads:
            say(heads_in_words(beginning))
        with stop_requests() as stop:
            try:
                with contextlib.closing(plan.feed):
                    train(plan, state, stop)
            except OSError as error:
                reason = f"cannot use {workdir}: {in_words(error)}"
                raise UserError(f"{reason}\nthe same command continues from the last checkpoint there") from error
        return metrics.last_records(workdir)


def load_data(dataset: ConfigDict) -> stored.AnyDataset:
    """Returns the data set of `config.dataset`, decoded or, where it is to be streamed, on the disk."""
    known, data_dir = recipe_of(dataset), dataset.data_dir or None
    sources.prepare(known, data_dir)
    memory = min(device_memory(), stored.machine_memory())
    chosen = everyone(choose_feed(dataset.feed, stored.decoded_bytes(known, data_dir), memory))
    streams = [reason for feed, reason in chosen if feed == "stream"]
    if not streams:  # of all processes: they run the same program
        return sources.load(known, data_dir)
    hint(streams[0])
    return stored.load(known, data_dir, say=say)


def check_same_begin(plan: Plan, state: TrainState) -> None:
    """Raises UserError, on all processes, unless they have the same data and begin with the same parameters."""
    if jax.process_count() > 1:
        parameters = ckpt.checksum(state.parameters)
        check_same({"the data (its fingerprint)": plan.data, "the parameters at the start": parameters})


@contextlib.contextmanager
def held(workdir: Path, config: ConfigDict) -> Iterator[Callable[[Beginning], None]]:
    """Holds the run directory, on process 0; gives a function that writes there what the run begins with."""
    if not is_main():
        yield lambda beginning: None
        return
    with directory.locked(workdir):
        before = directory.read_given(workdir)
        if before is None and (before := ckpt.saved_config(workdir)):  # lost: the checkpoints know it
            directory.keep_resolved(before, config)
        directory.check_same(workdir, before, config)
        yield lambda beginning: directory.claim(workdir, beginning.config, given=config, heads=beginning.heads)


def train(plan: Plan, state: TrainState, stop: dict[str, int]) -> None:
    """Trains to the end, from the newest intact checkpoint or else from `state`; see `run`."""
    config, total_steps = plan.config, plan.total_steps
    state, window = restore(plan, state)
    step = int(state.step)
    with ckpt.saving(plan.workdir, config) as checkpoints:
        say_missing(plan, step)
        if step >= total_steps:
            say(f"{plan.workdir} is already trained to the end (step {step}).")
            return
        is_new = not ckpt.steps_in(plan.workdir)
        reporter = create_reporter(
            config,
            plan.workdir,
            plan.skeleton,
            after_step=NOTHING if is_new else step,
            total_steps=total_steps,
        )
        save = functools.partial(save_checkpoint, plan, checkpoints, reporter)
        # What moves between host and device has to say so: a stray copy would make every dispatch wait.
        with contextlib.closing(reporter), jax.transfer_guard("disallow"):
            plan.feed.start(step)
            train_steps, seconds_per_step = compiled(plan, state), SECONDS_PER_DISPATCH
            if is_new:
                reporter.positions(0, 0.0, state.parameters)
                if config.start.run:  # from here on the run it started from is not needed
                    save(0, state, window, record_evaluation(plan, reporter, 0, state).get("validation"))
            first, trained_seconds = step, 0.0
            while step < total_steps:
                count, stop_signal = agree(steps_ahead(plan, step, seconds_per_step), stop["signal"])
                if stop_signal:
                    save(step, state, window)
                    ckpt.finish(checkpoints)
                    raise Interrupted(
                        f"stopped after step {step} of {total_steps}, saved in {plan.workdir}; "
                        "the same command goes on from there",
                        stop_signal,
                    )

                state, results, seconds, waited = dispatch(plan, train_steps, state, step, count)
                check_finite(plan, checkpoints, step, count, results)
                step, seconds_per_step = step + count, seconds / count
                window = window.extended(results, count, seconds, waited)
                reporter.advance(count)
                if trained_seconds < SECONDS_TO_ESTIMATE <= trained_seconds + seconds:
                    per_step = (trained_seconds + seconds) / (step - first)
                    hint(long_run(per_step * (total_steps - step), plan.mesh.devices.flat[0].platform))
                trained_seconds += seconds

                if step % config.train.log_every_steps == 0 or step == total_steps:
                    record_training(plan, reporter, step, window)
                    window = EMPTY
                epoch, steps_into_epoch = divmod(step, plan.steps_per_epoch)
                if not steps_into_epoch:
                    end_epoch(plan, reporter, epoch, step, state, functools.partial(save, step, state, window))


def dispatch(
    plan: Plan, train_steps: Callable, state: TrainState, step: int, count: int
) -> tuple[TrainState, dict[str, np.ndarray], float, float]:
    """Does `count` training steps from `step` on.

    Returns:
      The state after them, their losses and metrics, the seconds that they took, and those spent waiting for data.
    """
    started = time.monotonic()
    data = plan.feed.at(step)
    waited = time.monotonic() - started
    state, results = train_steps(state, data, place(np.int32(count), plan.mesh))
    results = jax.device_get(results)
    return state, results, time.monotonic() - started, waited


def end_epoch(
    plan: Plan,
    reporter: SilentReporter,
    epoch: int,
    step: int,
    state: TrainState,
    save: Callable[[float | None], None],
) -> None:
    """Records what is due after an epoch, and calls `save(validation accuracy)` where a checkpoint is."""
    config, accuracy = plan.config, {}
    reporter.positions(step, float(epoch), state.parameters)
    if plan.due(epoch, config.train.eval_every_epochs):
        accuracy = record_evaluation(plan, reporter, step, state)
    if plan.due(epoch, config.checkpoint.every_epochs):
        save(accuracy.get("validation"))


def hint(text: str) -> None:
    """Prints a hint, where there is one."""
    if text:
        say(text)


def save_checkpoint(
    plan: Plan,
    checkpoints: ocp.CheckpointManager,
    reporter: SilentReporter,
    step: int,
    state: TrainState,
    window: Window,
    validation_accuracy: float | None = None,
) -> None:
    """Starts to save a checkpoint in the background, see runs/checkpoints.py, after the records up to it."""
    reporter.flush()
    numbers = None if validation_accuracy is None else {"validation_accuracy": validation_accuracy}
    with jax.transfer_guard("allow"):  # Orbax copies as it likes
        ckpt.save(checkpoints, step, state, plan.config, window.metrics, numbers, plan.data)


def steps_ahead(plan: Plan, step: int, seconds_per_step: float) -> int:
    """Returns how many steps the next dispatch does: up to the next record or the end of the epoch, not long."""
    to_record = plan.config.train.log_every_steps - step % plan.config.train.log_every_steps
    to_epoch = plan.steps_per_epoch - step % plan.steps_per_epoch
    worth = int(SECONDS_PER_DISPATCH / seconds_per_step)
    return max(1, min(to_record, to_epoch, worth, most_steps(plan.config, plan.mesh), plan.feed.steps_left(step)))


def record_training(plan: Plan, reporter: SilentReporter, step: int, window: Window) -> None:
    """Records the means of a window that ends with `step`; says so if the network does not learn."""
    record = {"step": step, "epoch": step / plan.steps_per_epoch, "split": "train"}
    record |= {name: float(np.mean(values)) for name, values in window.metrics.items()}
    record["learning_rate"] = plan.learning_rate(step - 1)
    record["images_per_second"] = round(window.timed_steps * plan.config.train.batch_size / window.seconds, 1)
    if isinstance(plan.feed, Streamed):
        record["input_wait"] = round(window.waited / window.seconds, 4)
    reporter.record(record)
    steps = len(window.metrics["accuracy"])
    hint(not_learning(plan.config, step, steps, plan.total_steps, record["accuracy"]))


def record_evaluation(plan: Plan, reporter: SilentReporter, step: int, state: TrainState) -> dict[str, float]:
    """Records loss and accuracy of every evaluation set; returns the accuracies, by split."""
    accuracy = {}
    for split, pictures in plan.eval_sets.items():
        numbers = jax.tree.map(float, jax.device_get(plan.evaluate(state, pictures)))
        reporter.record({"step": step, "epoch": step / plan.steps_per_epoch, "split": split} | numbers)
        accuracy[split] = numbers["accuracy"]
    return accuracy


def check_finite(plan: Plan, checkpoints: ocp.CheckpointManager, step: int, count: int, results: dict) -> None:
    """Raises UserError, naming step, learning rate and last good checkpoint, if training has blown up."""
    if results["finite"]:
        return
    losses = results["loss"][:count]
    bad = np.flatnonzero(~np.isfinite(losses))
    at = step + int(bad[0]) if bad.size else step + count - 1
    what = f"the loss is {losses[bad[0]]}" if bad.size else "a parameter is not finite"
    ckpt.finish(checkpoints)
    saved = checkpoints.latest_step()
    good = f"the last good checkpoint is that of step {saved}" if saved is not None else "no checkpoint yet"
    raise UserError(
        f"{what} in step {at + 1}, at learning rate {plan.learning_rate(at):.4g}; {good} ({plan.workdir})\n"
        "lower config.optimizer.learning_rate or raise config.optimizer.warmup_fraction, in a new --workdir"
    )
