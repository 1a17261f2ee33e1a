"""Goes on after a stop: the newest intact checkpoint, with the steps since the last record of training."""

from typing import NamedTuple

import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory, metrics
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.runs.failures import Damaged
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


def restore(plan: Plan, checkpoints: ocp.CheckpointManager, state: TrainState) -> tuple[TrainState, Window]:
    """Returns the state of the newest intact checkpoint and its window; without a checkpoint, the state given.

    All processes read the same one: a checkpoint that one of them finds damaged counts as damaged.
    """
    for step in everyone(ckpt.all_steps(checkpoints))[0]:
        damage, saved, progress = "", plan.config, {}
        try:
            saved = ConfigDict(ckpt.read_plain(checkpoints, step, "config"))
            directory.check_same(f"the checkpoint of step {step} in {plan.workdir}", saved, plan.config)
            directory.check_same_data(plan.workdir, ckpt.read_data(checkpoints, step), plan.data)
            state, progress = ckpt.restore(checkpoints, step, state)
        except Damaged as error:
            damage = str(error)
        if any(found := everyone(damage)):
            say(f"skipping: {next(filter(None, found))}")
            if is_main():
                ckpt.set_aside(checkpoints, plan.workdir, step)
            everyone("it is moved")
            checkpoints.reload()
            continue
        say(f"going on after step {step} of {plan.total_steps} in {plan.workdir}")
        before, now = saved.train.num_epochs, plan.config.train.num_epochs
        if before < now and step < plan.total_steps:
            say(
                f"config.train.num_epochs raised from {before} to {now}: from here on the learning rate is that of the "
                f"longer run, {plan.learning_rate(step):.4g} in the next step"
            )
        return state, Window(progress)
    if ckpt.lie_aside(plan.workdir):
        raise UserError(
            f"no checkpoint in {plan.workdir} is intact; they lie in {plan.workdir / 'damaged'}\n"
            "move what is whole back from damaged/STEP-... to checkpoints/STEP, or choose another --workdir=DIR"
        )
    return state, EMPTY


def say_missing(plan: Plan, step: int) -> None:
    """Says how many records up to a step are missing from metrics.jsonl: those steps are not done again."""
    if not is_main():
        return
    path = plan.workdir / metrics.FILE
    found = {(record["step"], record["split"]) for record in metrics.read_metrics(path)}
    if missing := sorted(set(plan.records(step)) - found):
        first, split = missing[0]
        say(f"{path} has lost {len(missing)} records up to step {step}, the first of step {first} ({split})")
