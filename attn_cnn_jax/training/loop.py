"""Trains a run: `prepare` does all that can refuse, `train` steps, records, evaluates and saves.

The order in `train` is a rule: a step is recorded before its evaluation, an evaluation before its checkpoint, and a
signal is looked at before the next dispatch alone, so that what a checkpoint has, the records have too.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.config import spec_of
from attn_cnn_jax.data.sets import Split
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import join
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import environment, metrics, selfcheck
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.runs.evaluate import Evaluation, predictor, total
from attn_cnn_jax.training import hosts
from attn_cnn_jax.training.hosts import say
from attn_cnn_jax.training.mesh import place, placement
from attn_cnn_jax.training.prepare import Prepared, prepare
from attn_cnn_jax.training.reporter import BEFORE_START, Reporter, SilentReporter
from attn_cnn_jax.training.step import check_gradient, create_train_steps, crop_size, most_steps

# Short enough to stop soon when asked; long enough to hide the host's work and, on CPUs, what new memory costs in every
# dispatch, a twentieth of a second for 170 MB.
SECONDS_PER_DISPATCH = 2.0


class Window:
    """The steps since the last training record."""

    def __init__(self, metrics: dict[str, list[float]] | None = None):
        """Begins with no steps, or with those before this process: `loss` and `accuracy` of each, from a checkpoint."""
        self.metrics = metrics or {"loss": [], "accuracy": []}
        self.count, self.seconds, self.waited = 0, 0.0, 0.0  # of this process; waited for images

    def add(self, results: dict[str, np.ndarray], count: int, seconds: float, waited: float) -> None:
        """Adds `count` steps, with `results` as `train_steps` gives them."""
        self.metrics = {name: [*values, *results[name][:count].tolist()] for name, values in self.metrics.items()}
        self.count, self.seconds, self.waited = self.count + count, self.seconds + seconds, self.waited + waited

    def numbers(self, batch_size: int) -> dict[str, float]:
        """Returns means over all steps, and the speed of those of this process."""
        means = {name: float(np.mean(values)) for name, values in self.metrics.items()}
        return means | {"images_per_second": round(self.count * batch_size / self.seconds, 1)}


def run(config: ConfigDict, workdir: Path | str) -> dict[str, dict]:
    """Trains as configured, from the newest checkpoint in the run directory on, which is created if need be.

    Returns the last record of metrics of every split, by the name of the split.

    Raises:
      UserError: for a configuration, data or a run directory that cannot be trained with.
      SystemExit: with 128 + signal, after SIGTERM or Ctrl-C, once the state is saved.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.transfer_guard("allow"))  # whatever JAX_TRANSFER_GUARD says, until the loop
        prepared = prepare(config, Path(workdir).expanduser(), stack)
        if (step := int(prepared.state.step)) >= prepared.schedule.total_steps:
            say(f"{workdir} is already trained to the end (step {step}).")
        else:
            train(prepared, stack)
        return metrics.last_records(prepared.workdir)


def train(run: Prepared, stack: contextlib.ExitStack) -> None:
    """Takes all steps of a run that are left; `stack` closes its files."""
    config, schedule, mesh, state, step = run.config, run.schedule, run.mesh, run.state, int(run.state.step)
    stop = stack.enter_context(hosts.stop_requests())  # until the last checkpoint is written
    recorder = recording(run, step, stack)
    window, seconds_per_step = Window(run.progress), SECONDS_PER_DISPATCH
    crop = crop_size(config, step // schedule.steps_per_epoch)
    started, program = time.monotonic(), recorder.compiled(state, step, crop)
    say(f"step compiled in {time.monotonic() - started:.1f} s; {schedule.total_steps - step} steps to go")
    # What moves between host and device has to say so: a stray copy would make every dispatch wait.
    stack.enter_context(jax.transfer_guard("disallow"))
    if run.is_new:
        recorder.reporter.positions(0, 0.0, state.parameters)
        if config.start.run:  # from here on the run it started from is not needed
            recorder.save(state, step, window, recorder.evaluate(state, step))
    while step < schedule.total_steps:
        worth = max(1, int(SECONDS_PER_DISPATCH / seconds_per_step))
        count = min(worth, schedule.ahead(step), most_steps(config, mesh), run.feed.steps_left(step))
        counts, signals = zip(*hosts.everyone((count, stop["signal"])), strict=True)
        count, signal = min(counts), max(signals)  # of several processes all do the same
        if signal:
            recorder.stop(state, step, window, signal)
        if crop != (now := crop_size(config, step // schedule.steps_per_epoch)):
            crop, program = now, recorder.compiled(state, step, now)
        recorder.reporter.at(step, "training")
        started = time.monotonic()
        images = run.feed.at(step)
        waited = time.monotonic() - started
        state, results = program(state, images, place(np.int32(count), mesh))
        results = jax.device_get(results)
        seconds = time.monotonic() - started
        if not results["finite"]:
            raise recorder.blown_up(step, results["loss"][:count])
        step, seconds_per_step = step + count, seconds / count
        window.add(results, count, seconds, waited)
        recorder.reporter.at(step, "training")
        if step % config.train.log_every_steps == 0 or step == schedule.total_steps:
            recorder.record_steps(step, window)
            window = Window()
        if schedule.due(step, 1):
            recorder.reporter.positions(step, float(step // schedule.steps_per_epoch), state.parameters)
            evaluates = schedule.due(step, config.train.eval_every_epochs)
            accuracy = recorder.evaluate(state, step) if evaluates else None
            if schedule.due(step, config.checkpoint.every_epochs):
                recorder.save(state, step, window, accuracy)


def recording(run: Prepared, step: int, stack: contextlib.ExitStack) -> "Recorder":
    """Opens what a run writes: checkpoints, and, of the first process, metrics, positions and environment."""
    here = environment.describe(run.mesh.local_devices[0])
    after = BEFORE_START if run.is_new else step
    if hosts.is_main() and (line := environment.record(run.workdir, after, here)):
        say(line)
    checkpoints = stack.enter_context(ckpt.saving(run.workdir, run.config))
    reporter: Any = SilentReporter()
    if hosts.is_main():
        reporter = Reporter(run.config, run.workdir, run.skeleton, after, run.schedule.total_steps)
    stack.enter_context(contextlib.closing(reporter))
    return Recorder(run, reporter, checkpoints, here)


class Recorder(NamedTuple):
    """What a run writes and says while it trains."""

    run: Prepared
    reporter: Any  # a Reporter or SilentReporter
    checkpoints: ocp.CheckpointManager
    environment: Mapping[str, Any]

    def compiled(self, state: TrainState, step: int, crop: Grid) -> jax.stages.Compiled:
        """Returns the program of steps with crops of this size, once its gradient has passed the self-check."""
        run, of_run = self.run, (self.run.config, self.run.mesh, self.run.skeleton)
        spec = spec_of(run.config)
        self.reporter.at(step, "compiling the training step")
        with jax.transfer_guard("allow"):
            train_steps = create_train_steps(*of_run, run.optimizer, spec, crop)
            lowered = train_steps.lower(state, run.feed.at(step), place(np.int32(1), run.mesh))
            return selfcheck.checked(lowered, lambda _: check_gradient(*of_run, state, spec, crop))

    def record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Writes a record of metrics."""
        epoch = step / self.run.schedule.steps_per_epoch
        self.reporter.record({"step": step, "epoch": epoch, "split": split, **numbers})

    def record_steps(self, step: int, window: Window) -> None:
        """Writes the record of training steps."""
        more = {"input_wait": window.waited / window.seconds} if self.run.feed.streamed else {}
        more["learning_rate"] = rate_at(self.run.rate, step - 1)
        self.record(step, "train", window.numbers(self.run.config.train.batch_size) | more)

    def evaluate(self, state: TrainState, step: int) -> float | None:
        """Evaluates and records all splits; returns the validation accuracy, None without such a split."""
        self.reporter.at(step, "evaluating")
        with jax.transfer_guard("allow"):
            # On one device: maps are merged, and checked, outside the mesh.
            network = join(self.run.skeleton, *jax.device_put(jax.device_get((state.parameters, state.statistics))))
            results = evaluations(network, self.run.config, self.run.splits, self.run.mesh)
        for split, result in results.items():
            numbers = dataclasses.asdict(result) | {"accuracy": result.accuracy}
            self.record(step, split, {name: value for name, value in numbers.items() if value is not None})
        return results["validation"].accuracy if "validation" in results else None

    def save(self, state: TrainState, step: int, window: Window, accuracy: float | None = None) -> None:
        """Starts to save a checkpoint."""
        run = self.run
        with jax.transfer_guard("allow"):  # Orbax copies as it likes
            ckpt.save(self.checkpoints, step, state, run.config, window.metrics, accuracy, run.data, self.environment)

    def stop(self, state: TrainState, step: int, window: Window, signal: int) -> NoReturn:
        """Saves, and ends the process as its signal asks."""
        self.save(state, step, window)
        ckpt.finish(self.checkpoints)
        total, workdir = self.run.schedule.total_steps, self.run.workdir
        say(f"stopped after step {step} of {total}, saved in {workdir}; the same command continues")
        raise SystemExit(128 + signal)

    def blown_up(self, step: int, losses: np.ndarray) -> UserError:
        """Returns the error of steps after `step` that are not finite, once what is being saved is complete."""
        ckpt.finish(self.checkpoints)
        bad = np.flatnonzero(~np.isfinite(losses))
        at = step + int(bad[0]) if bad.size else step + len(losses) - 1
        what = f"the loss is {losses[bad[0]]}" if bad.size else "a parameter is not finite"
        saved = self.checkpoints.latest_step()
        good = f"the last good checkpoint is that of step {saved}" if saved is not None else "no checkpoint yet"
        return UserError(
            f"{what} in step {at + 1}, at learning rate {rate_at(self.run.rate, at):.4g}; {good} ({self.run.workdir})\n"
            "lower config.optimizer.learning_rate or raise config.optimizer.warmup_fraction, in a new --workdir"
        )


def evaluations(
    network: nnx.Module, config: ConfigDict, splits: Mapping[str, Split], mesh: Mesh
) -> dict[str, Evaluation]:
    """Returns loss and accuracy on each split, by one program: all batches have the size of the largest split's."""
    size = min(config.train.eval_batch_size, max(len(split.labels) for split in splits.values()))
    spec = spec_of(config)
    logits = predictor(network, config, spec, tuple(config.model.image_shape), size, placement(mesh))
    return {
        name: total(logits(lambda rows, split=split: split.images[rows], len(split.labels)), split.labels)
        for name, split in splits.items()
    }


def rate_at(schedule: Callable, step: int) -> float:
    """Returns the learning rate of a step, from 0."""
    with jax.transfer_guard("allow"):  # computed operation by operation
        return float(np.asarray(schedule(step)))
