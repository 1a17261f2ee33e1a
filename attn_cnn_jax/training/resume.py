"""Continues after a stop: the newest intact checkpoint, with the steps since the last record of training."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.data.sets import Fingerprint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.hosts import everyone, is_main, say


class Window(NamedTuple):
    """The steps since the last training record."""

    metrics: dict[str, list[float]]  # `loss` and `accuracy` of each; a checkpoint holds them as its `progress`
    seconds: float = 0.0  # that this process took for:
    timed_steps: int = 0
    waited: float = 0.0  # of these seconds, for images

    def extended(self, results: dict[str, np.ndarray], count: int, seconds: float, waited: float = 0.0) -> "Window":
        """Returns the window with `count` more steps, `results` as `train_steps` gives them."""
        metrics = {name: values + results[name][:count].tolist() for name, values in self.metrics.items()}
        return Window(metrics, self.seconds + seconds, self.timed_steps + count, self.waited + waited)


EMPTY = Window({"loss": [], "accuracy": []})


def restore(config: ConfigDict, workdir: Path, state: TrainState, data: Fingerprint) -> tuple[TrainState, Window]:
    """Returns the state of the newest intact checkpoint and its window; without a checkpoint, the state given.

    Moves damaged ones into `damaged/`, once an intact one is found. All processes read the same one: a checkpoint
    that one of them finds damaged counts as damaged.

    Raises:
      UserError: if no checkpoint is intact, or they are of another run.
    """
    steps, damaged = everyone(ckpt.steps_in(workdir))[0], []
    for step in steps:
        reason, saved, progress = "", config, {}
        try:
            ckpt.check_metrics(workdir, step)
            saved = ConfigDict(ckpt.read_plain(workdir, step, "config"))
            directory.check_same(f"the checkpoint of step {step} in {workdir}", saved, config)
            directory.check_same_data(workdir, ckpt.read_plain(workdir, step, "data"), data)
            directory.check_same_settings(workdir, ckpt.read_plain(workdir, step, "settings"), ckpt.settings())
            state, progress = ckpt.restore(workdir, step, state)
        except ckpt.Damaged as error:
            reason = str(error)
        if reason := next(filter(None, everyone(reason)), ""):
            say(f"skipping: {reason}")
            damaged.append(step)
            continue
        if is_main():
            put_aside(workdir, damaged, older=steps[steps.index(step) + 1 :])
        everyone("they are moved")
        say(f"continuing after step {step} in {workdir}")
        before, now = saved.train.num_epochs, config.train.num_epochs
        if before < now:
            say(f"config.train.num_epochs raised from {before} to {now}: learning rates are those of the longer run")
        return state, Window(progress)
    if damaged:
        raise UserError(
            f"no checkpoint in {workdir} is intact; all stay where they are\n"
            "restore one from a copy, or choose another --workdir=DIR"
        )
    return state, EMPTY


def put_aside(workdir: Path, damaged: list[int], older: list[int]) -> None:
    """Moves damaged checkpoints away, and of older ones those whose validation accuracy Orbax would fail to read."""
    for step in older:
        try:
            ckpt.check_metrics(workdir, step)
        except ckpt.Damaged as error:
            say(f"moving to damaged/: {error}")
            damaged = [*damaged, step]
    for step in damaged:
        ckpt.set_aside(workdir, step)
