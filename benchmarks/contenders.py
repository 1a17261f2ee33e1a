"""Ours and PyTorch's networks as functions to time, and what processes that measure them do."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from attn_cnn_jax.training.mesh import data_mesh
from benchmarks.children import forget_peak, peak_bytes
from benchmarks.measure import seconds, turns
from benchmarks.training import inference, random_pictures, training

# A process that times takes of a GPU what it needs, and leaves the rest to the other library.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

TASKS = {"training": training, "inference": inference}


def create(task: str, name: str, config: ConfigDict) -> Callable[[int], Any]:
    """A contender, "ours", "eager" or "compiled": a function that does a task so many times, and waits."""
    if name != "ours":
        from benchmarks import pytorch

        return getattr(pytorch, task)(config, compiled=name == "compiled")
    mesh = data_mesh(jax.devices()[:1])
    return TASKS[task](config, mesh, random_pictures(config, 10 * config.train.batch_size, mesh))


def alternating(
    task: str, names: Sequence[str], config: ConfigDict, repeats: int, steps: int
) -> dict[str, list[float]]:
    """Seconds of a step in each turn, by contender; all in this process, turn by turn."""
    functions = {}
    for name in names:
        contender = create(task, name, config)
        contender(1)  # compile
        functions[name] = lambda contender=contender: contender(steps)
    return {name: [turn / steps for turn in times] for name, times in turns(functions, repeats).items()}


def by_itself(task: str, name: str, config: ConfigDict, repeats: int) -> tuple[list[float], dict[str, int | None]]:
    """Seconds of some turns of one contender, and the bytes it takes, in a process that does nothing else.

    Returns:
      Seconds, and bytes by `imports`: before anything was made; `peak`: of all, compiling included; `later`: after the
      first step, None where the system cannot say. On a GPU those of the device.
    """
    if name != "ours":
        import torch

        import benchmarks.pytorch  # noqa: F401
    imports = peak_bytes()
    contender = create(task, name, config)
    contender(1)
    first, can_forget = peak_bytes(), forget_peak()
    times = [seconds(lambda: contender(1)) for _ in range(repeats)]
    if jax.default_backend() == "gpu":
        ours = name == "ours"
        peak = jax.devices()[0].memory_stats()["peak_bytes_in_use"] if ours else torch.cuda.max_memory_allocated()
        return times, {"imports": 0, "peak": peak, "later": None}
    later = peak_bytes()
    return times, {"imports": imports, "peak": max(first, later), "later": later if can_forget else None}
