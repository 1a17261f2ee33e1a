"""The state that training continues from: that of the newest intact checkpoint of the same run."""

from pathlib import Path

from ml_collections import ConfigDict

from attn_cnn_jax.data.sets import Fingerprint, differences
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.hosts import everyone, is_main, say


def restore(
    config: ConfigDict, workdir: Path, state: TrainState, data: Fingerprint
) -> tuple[TrainState, dict[str, list[float]]]:
    """Returns the state of the newest intact checkpoint and the metrics since the last record; else `state` and {}.

    Moves damaged ones into `damaged/`, once an intact one is found. All processes read the same one: a checkpoint that
    one of them finds damaged counts as damaged. UserError if no checkpoint is intact, or they are of another run.
    """
    steps, damaged = everyone(ckpt.steps_in(workdir))[0], []
    for step in steps:
        reason, before, progress = "", config, {}
        try:
            before = ConfigDict(ckpt.read_plain(workdir, step, "config"))
            other_data = differences(ckpt.read_plain(workdir, step, "data"), data)
            settings = directory.differing(ckpt.read_plain(workdir, step, "settings"), ckpt.settings())
            place = f"the checkpoint of step {step} in {workdir}"
            # Data first: mean and deviation of a configuration are those of its data.
            directory.refuse_other_run(place, "of other data", [other_data] if other_data else [])
            directory.refuse_other_run(place, "with another configuration", directory.differing_config(before, config))
            directory.refuse_other_run(place, "with other settings of JAX", settings)
            state, progress = ckpt.restore(workdir, step, state)
        except ckpt.Damaged as error:
            reason = str(error)
        if reason := next(filter(None, everyone(reason)), ""):
            say(f"skipping: {reason}")
            damaged.append(step)
            continue
        for each in damaged if is_main() else ():
            ckpt.set_aside(workdir, each)
        everyone("they are moved")
        say(f"continuing after step {step} in {workdir}")
        if (old := before.train.num_epochs) < (new := config.train.num_epochs):
            say(f"config.train.num_epochs raised from {old} to {new}: learning rates are those of the longer run")
        return state, progress
    if damaged:
        raise UserError(
            f"no checkpoint in {workdir} is intact; all stay where they are\n"
            "restore one from a copy, or choose another --workdir=DIR"
        )
    return state, {}
