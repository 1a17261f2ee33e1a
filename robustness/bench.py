"""What attacks on training processes need: runs that nobody disturbs, and what must hold after each attack."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from attn_cnn_jax.runs.failures import Damaged
from flax import nnx

from attn_cnn_jax.config import create_model
from attn_cnn_jax.runs.checkpoints import open_checkpoints, read_plain, restore
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.training.optimizer import create_optimizer
from attn_cnn_jax.training.step import initial_state
from robustness.small_runs import Trainer, assert_same_run, epochs, finish, finished_steps

EPOCHS = 20  # of the runs under attack, and:
PAIR_EPOCHS = 6


class Bench(NamedTuple):
    """What attacks need: `trainer` starts a process; `references` is the folder of runs that nobody disturbs."""

    trainer: Trainer
    references: Path

    def reference(self, count: int = EPOCHS, processes: int = 1) -> Path:
        """A run of so many epochs, its data on the devices; trained when it is first asked for."""
        workdir = self.references / f"{count}_epochs_{processes}_processes"
        if not workdir.exists():
            trainer = self.trainer._replace(always=())
            start = trainer.pair if processes == 2 else lambda *arguments: [trainer(*arguments)]
            outputs = [finish(process) for process in start(workdir, epochs(count))]
            workdir.with_suffix(".log").write_text("".join(outputs))
        return workdir


Attacked = Callable[[Bench, Path, random.Random], str]


def streaming(attack: Attacked, workers: int) -> Attacked:
    """An attack on runs that read their pictures from the disk, by threads (0) or by so many processes."""
    always = ("--config.dataset.feed=stream",)

    def attack_streaming(bench: Bench, folder: Path, generator: random.Random) -> str:
        return attack(bench._replace(trainer=bench.trainer._replace(always=always)), folder, generator)

    return attack_streaming


class Skipped(Exception):
    """Why an attack is not possible here."""


def goes_on(bench: Bench, workdir: Path, count: int = EPOCHS) -> str:
    """The same command goes on from the newest finished checkpoint, to the end of the undisturbed run."""
    steps = finished_steps(workdir)
    output = finish(bench.trainer(workdir, epochs(count)))
    assert not steps or f"going on after step {steps[-1]} of" in output, f"not from {steps}: {output}"
    assert "Traceback" not in output, output
    assert_same_run(workdir, bench.reference(count))
    return output


def damaged_checkpoints(workdir: Path) -> list[Damaged]:
    """What every part of every checkpoint, read whole, has against it."""
    config = read_config(workdir)
    model = create_model(config.model, rngs=nnx.Rngs(config.seed))
    like = initial_state(model, create_optimizer(config.optimizer, lambda step: 0.0))[1]
    found = []
    with open_checkpoints(workdir, read_only=True) as checkpoints:
        for step in checkpoints.all_steps():
            try:
                read_plain(checkpoints, step, "config")
                restore(checkpoints, step, like)
            except Damaged as error:
                found.append(error)
    return found
