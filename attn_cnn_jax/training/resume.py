"""Goes on after a stop: the newest intact checkpoint, with the steps since the last record of training."""

from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory, metrics
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.distributed.agreement import is_main, say
from attn_cnn_jax.training.distributed.comparison import everyone
from attn_cnn_jax.training.plan import Plan


class Window(NamedTuple):
    """The steps since the last training record."""

    metrics: dict[str, list[float]]  # `loss` and `accuracy` of each; a checkpoint holds them as its `progress`
    seconds: float = 0.0  # that this process took for:
    timed_steps: int = 0
    waited: float = 0.0  # of these seconds, for pictures

    def extended(self, results: dict[str, np.ndarray], count: int, seconds: float, waited: float = 0.0) -> "Window":
        """Returns the window with `count` more steps, `results` as `train_steps` gives them."""
        metrics = {name: values + results[name][:count].tolist() for name, values in self.metrics.items()}
        return Window(metrics, self.seconds + seconds, self.timed_steps + count, self.waited + waited)


EMPTY = Window({"loss": [], "accuracy": []})


def restore(plan: Plan, state: TrainState) -> tuple[TrainState, Window]:
    """Returns the state of the newest intact checkpoint and its window; without a checkpoint, the state given.

    Moves damaged newer ones into `damaged/`, once an intact one is found. All processes read the same one: a checkpoint
    that one of them finds damaged counts as damaged.

    Raises:
      UserError: if no checkpoint is intact, or they are of another run.
    """
    workdir, damaged = plan.workdir, []
    for step in everyone(ckpt.steps_in(workdir))[0]:
        reason, saved, progress = "", plan.config, {}
        try:
            ckpt.check_metrics(workdir, step)
            saved = ConfigDict(ckpt.read_plain(workdir, step, "config"))
            directory.check_same(f"the checkpoint of step {step} in {workdir}", saved, plan.config)
            directory.check_same_data(workdir, ckpt.read_optional(workdir, step, "data"), plan.data)
            directory.check_same_settings(workdir, ckpt.read_optional(workdir, step, "settings"), ckpt.settings())
            state, progress = ckpt.restore(workdir, step, state)
        except ckpt.Damaged as error:
            reason = str(error)
        if reason := next(filter(None, everyone(reason)), ""):
            say(f"skipping: {reason}")
            damaged.append(step)
            continue
        put_aside(plan, step, damaged)
        say(f"continuing after step {step} of {plan.total_steps} in {workdir}")
        before, now = saved.train.num_epochs, plan.config.train.num_epochs
        if before < now and step < plan.total_steps:
            say(
                f"config.train.num_epochs raised from {before} to {now}: from here on the learning rate is that of the "
                f"longer run, {plan.learning_rate(step):.4g} in the next step"
            )
        return state, Window(progress)
    if damaged:
        raise UserError(
            f"no checkpoint in {workdir} is intact; all stay where they are\n"
            "restore one from a copy, or choose another --workdir=DIR"
        )
    return state, EMPTY


def put_aside(plan: Plan, intact: int, damaged: list[int]) -> None:
    """Moves damaged checkpoints away, also older ones whose validation accuracy Orbax would fail to read."""
    for step in ckpt.steps_in(plan.workdir) if is_main() else ():
        try:
            if step < intact:
                ckpt.check_metrics(plan.workdir, step)
        except ckpt.Damaged as error:
            say(f"moving to damaged/: {error}")
            damaged = [*damaged, step]
    for step in damaged if is_main() else ():
        ckpt.set_aside(plan.workdir, step)
    everyone("they are moved")


def say_missing(plan: Plan, step: int) -> None:
    """Says how many records up to a step are missing from metrics.jsonl: those steps are not done again."""
    if not is_main():
        return
    path = plan.workdir / metrics.FILE
    found = {(record["step"], record["split"]) for record in metrics.read_metrics(path)}
    if missing := sorted(set(plan.records(step)) - found):
        first, split = missing[0]
        say(f"{path} has lost {len(missing)} records up to step {step}, the first of step {first} ({split})")
