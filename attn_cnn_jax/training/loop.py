"""A whole run: data, network and checkpoints put together; goes on where it stopped."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config import complete
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError, in_words
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import last_records
from attn_cnn_jax.runs.positions import create_recorder
from attn_cnn_jax.runs.seeds import mean_record, per_seed, pick, seeds_of, stack
from attn_cnn_jax.training.distributed.agreement import Interrupted, agree, is_main, say, stop_requests
from attn_cnn_jax.training.limits import check_counts, check_devices, check_memory
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.reporter import MetricsWriter, Progress
from attn_cnn_jax.training.start import begin, fixed_entries
from attn_cnn_jax.training.step import (
    Pictures,
    create_evaluate,
    create_train_steps,
    data_mesh,
    initial_state,
    most_steps,
    place,
)

SECONDS_A_DISPATCH = 0.5  # long enough to hide the host's work, short enough to stop soon when asked


DrawFigures = Callable[[ConfigDict, int, nnx.Module, Path], dict[str, np.ndarray]]


def run(config: ConfigDict, workdir: Path | str, draw_figures: DrawFigures | None = None) -> dict[str, dict]:
    """Trains as configured, from the newest checkpoint in `workdir` on.

    Args:
      config: what a file in configs/ returns.
      workdir: run directory; created if need be.
      draw_figures: given configuration, step, network and run directory, draws what TensorBoard shows every
        `config.train.figures_every_epochs` epochs, `(height, width, 3)` uint8 by name. A function rather
        than an import: what looks at networks builds on training, not the other way round.

    Returns:
      The last record of metrics of every split, by the split's name, see metrics.last_records.

    Raises:
      UserError: for a configuration, data or a run directory that can't be trained with.
      Interrupted: after SIGTERM or Ctrl-C, once the state is saved.
    """
    config, workdir = complete(config), Path(workdir)
    mesh = data_mesh()
    check_devices(config, mesh.size)
    check_memory(config)
    dataset = sources.load(config.dataset.name, config.dataset.data_dir or None)
    check_counts(config, len(dataset.train.labels))
    with directory.locked(workdir) if is_main() else nullcontext():
        if is_main():
            directory.check_same(workdir, directory.read_config(workdir), config)
        begun = [begin(config, workdir, seed) for seed in seeds_of(config)]
        this = Run(begun[0][0], [model for _, model in begun], workdir, mesh, dataset, draw_figures)
        if is_main():
            directory.claim(workdir, config)  # only now: what cannot begin leaves no run directory behind
        with stop_requests() as stop:
            try:
                return this.train(stop)
            except (OSError, ckpt.NotSaved) as error:
                reason = str(error) if isinstance(error, UserError) else f"cannot use {workdir}: {in_words(error)}"
                raise UserError(f"{reason}\nthe same command goes on from the last checkpoint there") from error


def kernels_in_words(config: ConfigDict, model: nnx.Module) -> str:
    """Which attention kernels run, for the log; "" for a network that has none to choose."""
    if config.model.name != "attention":
        return ""
    batch, image_shape = config.train.batch_size, config.model.image_shape
    training, evaluation = ("/".join(sorted(set(model.kernels(batch, image_shape, training=t)))) for t in (True, False))
    return f"; attention kernel: {training}" + (f", {evaluation} in evaluation" if evaluation != training else "")


class Run:
    """One process's part in a run; `train` is its only use."""

    def __init__(
        self,
        config: ConfigDict,
        models: list[nnx.Module],  # one a seed
        workdir: Path,
        mesh,
        dataset: sources.Dataset,
        draw_figures: DrawFigures | None,
    ):
        self.config, self.workdir, self.draw_figures = config, workdir, draw_figures
        self.kernels = kernels_in_words(config, models[0])
        train, splits = dataset.train, {"test": dataset.test}
        if config.dataset.num_validation:
            train, validation = sources.split_validation(train, config.dataset.num_validation, config.seed)
            splits = {"validation": validation} | splits
        self.train_set = place(Pictures(*train), mesh)
        self.eval_sets = {name: place(Pictures(*pictures), mesh) for name, pictures in splits.items()}

        self.pictures_a_step = config.train.batch_size * config.train.num_seeds
        self.steps_per_epoch = train.labels.shape[0] // config.train.batch_size
        self.total_steps = config.train.num_epochs * self.steps_per_epoch
        self.schedule = learning_rate(config.optimizer, config.train.num_epochs, self.steps_per_epoch)
        fixed = fixed_entries(config, split(models[0])[1])
        optimizer = create_optimizer(config.optimizer, self.schedule, fixed)
        skeletons, states = zip(*(initial_state(model, optimizer) for model in models), strict=True)
        self.skeleton, self.state = skeletons[0], place(stack(states), mesh)
        self.train_steps = create_train_steps(config, mesh, self.skeleton, optimizer, dataset.spec)
        self.evaluate = create_evaluate(config, mesh, self.skeleton, dataset.spec)

    def train(self, stop: dict) -> dict[str, dict]:
        """Trains to the end; see `run`."""
        with ckpt.saving(self.workdir, self.config, self.steps_per_epoch) as self.checkpoints:
            self.window = self.restore()
            step = int(np.max(self.state.step))
            if step >= self.total_steps:
                say(f"{self.workdir} is already trained to the end (step {step}).")
                return last_records(self.workdir)
            self.writer = (
                MetricsWriter(self.workdir, after_step=step, tensorboard=self.config.train.tensorboard)
                if is_main()
                else None
            )
            self.record_positions = (
                create_recorder(self.config, self.skeleton, self.workdir, step) if is_main() else None
            )
            self.progress = Progress(step, self.total_steps, self.pictures_a_step) if is_main() else None
            try:
                self.loop(step, stop)
            finally:
                if is_main():
                    self.progress.close()
                    self.writer.close()
        return last_records(self.workdir)

    def restore(self) -> dict[str, list]:
        """Restores the newest intact checkpoint; returns the metrics of the steps since the last record."""
        for step in ckpt.all_steps(self.checkpoints):
            try:
                saved = ConfigDict(ckpt.read_plain(self.checkpoints, step, "config"))
                directory.check_same(f"the checkpoint of step {step} in {self.workdir}", saved, self.config)
                self.state, progress = ckpt.restore(self.checkpoints, step, self.state)
            except ckpt.Damaged as error:
                if jax.process_count() > 1:
                    raise
                say(f"skipping: {error}")
                ckpt.set_aside(self.checkpoints, step)
                continue
            say(f"going on after step {step} of {self.total_steps} in {self.workdir}")
            return progress
        if ckpt.lie_aside(self.workdir):
            raise UserError(
                f"no checkpoint in {self.workdir} is intact; they lie in {self.workdir / 'damaged'}\n"
                "move what is whole back from damaged/STEP-... to checkpoints/STEP, or choose another --workdir=DIR"
            )
        return {"loss": [], "accuracy": []}

    def loop(self, step: int, stop: dict) -> None:
        started = time.monotonic()
        train_steps = self.train_steps.lower(self.state, self.train_set, jnp.int32(1)).compile()
        say(f"step compiled in {time.monotonic() - started:.1f} s; {self.total_steps - step} steps to go{self.kernels}")
        seconds, timed_steps, seconds_a_step = 0.0, 0, None
        if step == 0 and is_main():
            self.record_positions(0, 0.0, self.state.parameters)
        if step == 0 and self.config.start.run:
            self.save(0)  # from here on the run it started from is not needed
        while step < self.total_steps:
            count, stop_signal = agree(self.steps_ahead(step, seconds_a_step), stop["signal"])
            if stop_signal:
                self.save(step)
                ckpt.finish(self.checkpoints)
                raise Interrupted(
                    f"stopped after step {step} of {self.total_steps}, saved in {self.workdir}; "
                    "the same command goes on from there",
                    stop_signal,
                )
            started = time.monotonic()
            self.state, results = train_steps(self.state, self.train_set, jnp.int32(count))
            results = jax.device_get(results)
            elapsed = time.monotonic() - started
            seconds_a_step = elapsed / count
            seconds, timed_steps = seconds + elapsed, timed_steps + count
            self.check_finite(step, count, results)
            for name, values in self.window.items():
                values.extend(results[name][..., :count].T.tolist())
            step += count
            if is_main():
                self.progress.advance(count)
            if step % self.config.train.log_every_steps == 0 or step == self.total_steps:
                self.report_training(step, timed_steps * self.pictures_a_step / seconds)
                seconds, timed_steps = 0.0, 0
            if step % self.steps_per_epoch == 0:
                self.end_epoch(step)

    def steps_ahead(self, step: int, seconds_a_step: float | None) -> int:
        """How many steps the next dispatch does: up to the next record or the end of the epoch, not long."""
        to_record = self.config.train.log_every_steps - step % self.config.train.log_every_steps
        to_epoch = self.steps_per_epoch - step % self.steps_per_epoch
        worth = 1 if seconds_a_step is None else int(SECONDS_A_DISPATCH / seconds_a_step)
        return max(1, min(to_record, to_epoch, worth, most_steps(self.config)))

    def check_finite(self, step: int, count: int, results: dict) -> None:
        """UserError, naming step, learning rate and last good checkpoint, if training has blown up."""
        if np.all(results["finite"]):
            return
        number = np.flatnonzero(~np.atleast_1d(results["finite"]))[0]
        losses = np.atleast_2d(results["loss"])[number, :count]
        bad = np.flatnonzero(~np.isfinite(losses))
        at = step + int(bad[0]) if bad.size else step + count - 1
        what = f"the loss is {losses[bad[0]]}" if bad.size else "a parameter is not finite"
        seed = f" of seed {self.config.seed + number}" if self.config.train.num_seeds > 1 else ""
        ckpt.finish(self.checkpoints)
        saved = self.checkpoints.latest_step()
        good = f"the last good checkpoint is that of step {saved}" if saved is not None else "no checkpoint yet"
        raise UserError(
            f"{what} in step {at + 1}{seed}, at learning rate {float(self.schedule(at)):.4g}; {good} ({self.workdir})\n"
            "lower config.optimizer.learning_rate or raise config.optimizer.warmup_fraction, in a new --workdir"
        )

    def report_training(self, step: int, images_per_second: float) -> None:
        numbers = {name: np.mean(values, axis=0) for name, values in self.window.items()}
        numbers |= {"learning_rate": self.schedule(step - 1), "images_per_second": round(images_per_second, 1)}
        self.window = {name: [] for name in self.window}
        self.write({"step": step, "epoch": step / self.steps_per_epoch, "split": "train"}, numbers)

    def write(self, where: dict, numbers: dict) -> None:
        if is_main():
            records = per_seed(self.config, where, numbers)
            self.writer.write(*records)
            self.progress.report(mean_record(records))

    def end_epoch(self, step: int) -> None:
        """Evaluates and saves where the configuration says so, always after the last epoch."""
        epoch, last = step // self.steps_per_epoch, step == self.total_steps
        if is_main():
            self.record_positions(step, float(epoch), self.state.parameters)
        accuracies = {}
        if last or epoch % self.config.train.eval_every_epochs == 0:
            for name, pictures in self.eval_sets.items():
                results = jax.device_get(self.evaluate(self.state, pictures))
                self.write({"step": step, "epoch": float(epoch), "split": name}, results)
                accuracies[name] = results["accuracy"].tolist()
        if self.draws(epoch, last):
            arrays = pick(self.config, (self.state.parameters, self.state.statistics), self.config.seed)
            model = join(self.skeleton, *jax.device_get(arrays))
            self.writer.write_pictures(step, self.draw_figures(self.config, step, model, self.workdir))
        if last or epoch % self.config.checkpoint.every_epochs == 0:
            self.save(step, accuracies.get("validation"))

    def draws(self, epoch: int, last: bool) -> bool:
        """Whether this process draws figures, of the first seed, after this epoch."""
        every = self.config.train.figures_every_epochs
        return bool(self.draw_figures and every and is_main() and (last or epoch % every == 0))

    def save(self, step: int, validation_accuracy: float | list[float] | None = None) -> None:
        metrics = None if validation_accuracy is None else {"validation_accuracy": validation_accuracy}
        ckpt.save(self.checkpoints, step, self.state, self.config, self.window, metrics)
