"""Trains a run to its end: from the newest checkpoint on, for each dispatch: step, record, evaluate, save."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.config import complete, spec_of
from attn_cnn_jax.config.checks import check_counts
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.audit import lines_on_training
from attn_cnn_jax.data.sets import Dataset, Split, fingerprint, is_own, lacking, source_of, split_validation
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import join
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory, environment, metrics, selfcheck
from attn_cnn_jax.runs.evaluate import Evaluation, predictor, total
from attn_cnn_jax.training import hosts
from attn_cnn_jax.training.feed import Feed
from attn_cnn_jax.training.hosts import say
from attn_cnn_jax.training.mesh import check_memory, device_memory, mesh_for, place, placement
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate, matrices
from attn_cnn_jax.training.reporter import NOTHING, Reporter, SilentReporter
from attn_cnn_jax.training.start import begin, left_alone, restore
from attn_cnn_jax.training.step import check_gradient, create_train_steps, crop_size, initial_state, most_steps

# Short enough to stop soon when asked; long enough to hide the host's work and, on CPUs, what new memory costs in every
# dispatch, a twentieth of a second for 170 MB.
SECONDS_PER_DISPATCH = 2.0


class Plan(NamedTuple):
    """What is due when in a run: arithmetic on its steps, of which an incomplete batch at an epoch's end is none."""

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
        config, workdir = complete(config), Path(workdir).expanduser()
        mesh = mesh_for(config.train.batch_size)
        hosts.check_same(hosts.settings(config))
        ckpt.check_folder(workdir)
        dataset, streamed = load_data(config.dataset)
        config = complete(config, dataset.spec)
        check_counts(config.train.batch_size, config.dataset, len(dataset.train.labels))
        check_memory(config.model)
        if hosts.is_main():
            stack.enter_context(directory.locked(workdir))
        hosts.check_shared(workdir)

        given = config
        config, model = begin(config, workdir)
        train_set, validation = dataset.train, dataset.validation
        if config.dataset.num_validation:
            train_set, validation = split_validation(train_set, config.dataset.num_validation, config.seed)
            if line := lacking(validation, dataset.spec):
                say(line)
        splits = ({} if validation is None else {"validation": validation}) | {"test": dataset.test}
        for line in lines_on_training(config, len(train_set.labels)) if is_own(config.dataset.name) else ():
            say(line)
        plan = Plan(config, len(train_set.labels) // config.train.batch_size)
        schedule = learning_rate(config.optimizer, config.train.num_epochs, plan.steps_per_epoch)
        fixed = left_alone(config, model)
        optimizer = create_optimizer(config.optimizer, schedule, fixed, shaped=matrices(model))
        skeleton, state = initial_state(model, optimizer)
        data = fingerprint(dataset, validation)
        if jax.process_count() > 1:
            parameters = ckpt.checksum(state.parameters)
            hosts.check_same({"the data (its fingerprint)": data, "the parameters at the start": parameters})
        feed = Feed(train_set, config, mesh, streamed=streamed)
        stack.enter_context(contextlib.closing(feed))

        state, progress = restore(config, workdir, place(state, mesh), data)
        step, window, seconds_per_step = int(state.step), Window(progress), SECONDS_PER_DISPATCH
        here = environment.describe(mesh.local_devices[0])
        if hosts.is_main():
            directory.claim(workdir, given)  # only now: what cannot begin leaves no run directory behind
        if step >= plan.total_steps:
            say(f"{workdir} is already trained to the end (step {step}).")
            return metrics.last_records(workdir)
        is_new = not ckpt.steps_in(workdir)
        if hosts.is_main() and (line := environment.record(workdir, -1 if is_new else step, here)):
            say(line)
        checkpoints = stack.enter_context(ckpt.saving(workdir, config))
        reporter = SilentReporter()
        if hosts.is_main():
            reporter = Reporter(config, workdir, skeleton, NOTHING if is_new else step, plan.total_steps)
        stack.enter_context(contextlib.closing(reporter))
        stop = stack.enter_context(hosts.stop_requests())

        def record(split: str, numbers: dict[str, float]) -> None:
            reporter.record({"step": step, "epoch": step / plan.steps_per_epoch, "split": split} | numbers)

        def save(accuracy: float | None = None) -> None:
            with jax.transfer_guard("allow"):  # Orbax copies as it likes
                ckpt.save(checkpoints, step, state, config, window.metrics, accuracy, data, here)

        def evaluated() -> float | None:
            reporter.at(step, "evaluating")
            with jax.transfer_guard("allow"):
                # On one device: maps are merged, and checked, outside the mesh.
                network = join(skeleton, *jax.device_put(jax.device_get((state.parameters, state.statistics))))
                results = evaluations(network, config, splits, mesh)
            for split, result in results.items():
                record(split, dataclasses.asdict(result) | {"accuracy": result.accuracy})
            return results["validation"].accuracy if "validation" in results else None

        def compiled(crop: Grid) -> jax.stages.Compiled:
            """The program of steps with crops of this size."""
            reporter.at(step, "compiling the training step")
            train_steps = create_train_steps(config, mesh, skeleton, optimizer, spec_of(config), crop)
            lowered = train_steps.lower(state, feed.at(step), place(np.int32(1), mesh))
            with ThreadPoolExecutor(1) as beside:
                check = functools.partial(check_gradient, config, mesh, skeleton, state, spec_of(config), crop)
                checked = beside.submit(selfcheck.once, lowered.as_text(), check)
                program = lowered.compile()
                checked.result()
            return program

        crop = crop_size(config, step // plan.steps_per_epoch)
        started, program = time.monotonic(), compiled(crop)
        say(f"step compiled in {time.monotonic() - started:.1f} s; {plan.total_steps - step} steps to go")
        # What moves between host and device has to say so: a stray copy would make every dispatch wait.
        stack.enter_context(jax.transfer_guard("disallow"))
        if is_new:
            reporter.positions(0, 0.0, state.parameters)
            if config.start.run:  # from here on the run it started from is not needed
                save(evaluated())
        while step < plan.total_steps:
            worth = max(1, int(SECONDS_PER_DISPATCH / seconds_per_step))
            count = min(worth, plan.ahead(step), most_steps(config, mesh), feed.steps_left(step))
            counts, signals = zip(*hosts.everyone((count, stop["signal"])), strict=True)
            count, signal = min(counts), max(signals)  # of several processes all do the same
            if signal:
                save()
                ckpt.finish(checkpoints)
                say(f"stopped after step {step} of {plan.total_steps}, saved in {workdir}; the same command continues")
                raise SystemExit(128 + signal)

            if crop != (now := crop_size(config, step // plan.steps_per_epoch)):
                with jax.transfer_guard("allow"):
                    crop, program = now, compiled(now)
            reporter.at(step, "training")
            started = time.monotonic()
            images = feed.at(step)
            waited = time.monotonic() - started
            state, results = program(state, images, place(np.int32(count), mesh))
            results = jax.device_get(results)
            seconds = time.monotonic() - started
            if not results["finite"]:
                ckpt.finish(checkpoints)
                raise blown_up(step, results["loss"][:count], schedule, checkpoints.latest_step(), workdir)
            step, seconds_per_step = step + count, seconds / count
            window.add(results, count, seconds, waited)
            reporter.at(step, "training")

            if step % config.train.log_every_steps == 0 or step == plan.total_steps:
                more = {"input_wait": window.waited / window.seconds} if streamed else {}
                more["learning_rate"] = rate_at(schedule, step - 1)
                record("train", window.numbers(config.train.batch_size) | more)
                window = Window()
            if plan.due(step, 1):
                reporter.positions(step, float(step // plan.steps_per_epoch), state.parameters)
                accuracy = evaluated() if plan.due(step, config.train.eval_every_epochs) else None
                if plan.due(step, config.checkpoint.every_epochs):
                    save(accuracy)
    return metrics.last_records(workdir)


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


def load_data(dataset: ConfigDict) -> tuple[Dataset, bool]:
    """Returns the data set of `config.dataset`, and whether it is to be streamed from the disk."""
    source, data_dir = source_of(dataset), dataset.data_dir or None
    found = sources.load(source, data_dir)
    memory = min(device_memory(), sources.machine_memory())
    is_large = dataset.feed == "auto" and found.nbytes > sources.MEMORY_SHARE * memory
    if is_large:
        say(
            f"the images take {found.nbytes / 1e9:,.1f} GB, more than a quarter of the {memory / 1e9:,.1f} GB of "
            "memory: streamed from the disk"
        )
    for line in found.notes:
        say(f"{source.words}: {line}")
    return found, any(hosts.everyone(is_large or dataset.feed == "stream"))  # all processes run the same program


def rate_at(schedule: Callable, step: int) -> float:
    """Returns the learning rate of a step, from 0."""
    with jax.transfer_guard("allow"):  # computed operation by operation
        return float(np.asarray(schedule(step)))


def blown_up(step: int, losses: np.ndarray, schedule: Callable, saved: int | None, workdir: Path) -> UserError:
    """Returns the error of steps after `step` that are not finite: names step, learning rate and last checkpoint."""
    bad = np.flatnonzero(~np.isfinite(losses))
    at = step + int(bad[0]) if bad.size else step + len(losses) - 1
    what = f"the loss is {losses[bad[0]]}" if bad.size else "a parameter is not finite"
    good = f"the last good checkpoint is that of step {saved}" if saved is not None else "no checkpoint yet"
    return UserError(
        f"{what} in step {at + 1}, at learning rate {rate_at(schedule, at):.4g}; {good} ({workdir})\n"
        "lower config.optimizer.learning_rate or raise config.optimizer.warmup_fraction, in a new --workdir"
    )
