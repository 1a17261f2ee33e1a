"""Where the time of a training step goes on a CPU: every operation of the compiled program, as XLA's profiler times it.

    python -m benchmarks.breakdown [--config cifar10_cpu] [--steps 40] [--largest 8] [--json FILE]

Trains on random pictures. A first table sums operations by kind, matrix products beside the rate of large square ones;
a second has the operations that take longest. Operations may run at the same time as others, so their sum may exceed
the time of the step. For GPUs and TPUs `attn-cnn compile` estimates the same.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attn_cnn_jax.cli.arguments import at_least_one
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.compilation import hlo
from attn_cnn_jax.compilation.operations import KINDS, PRODUCT, Operation, operations, training_step
from attn_cnn_jax.config import complete
from attn_cnn_jax.errors import UserError, says_errors
from attn_cnn_jax.training.mesh import data_mesh
from attn_cnn_jax.training.step import most_steps
from benchmarks.measure import seconds, table, write_json
from benchmarks.rates import matrix_product_rates
from benchmarks.training import random_pictures, repeated, steps_and_state

BY_KIND = ("kind", "ms a step", "share (%)", "operations", "GFLOP/s")
LARGEST = ("operation", "ms a step", "runs", "GFLOP/s", "from", "result")


@says_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="cifar10_cpu", help="name or file of a configuration")
    parser.add_argument("--steps", type=at_least_one, default=40, help="that are timed")
    parser.add_argument("--largest", type=at_least_one, default=8, help="operations that are listed")
    parser.add_argument("--json", metavar="FILE", help="also write what was measured there")
    options = parser.parse_args(argv)
    if jax.default_backend() != "cpu":
        raise UserError(f"JAX runs on a {jax.default_backend()} here: set JAX_PLATFORMS=cpu, or use attn-cnn compile")
    config = complete(load_config(options.config))
    found, times, wall = measure(config, options.steps)
    rate = max(matrix_product_rates(config.model.dtype, with_torch=False).values())
    kinds = by_kind(found, times)
    print(table(kinds, BY_KIND))
    print(f"a step takes {1000 * wall:.1f} ms, its operations {sum(each['ms a step'] for each in kinds):.1f} ms")
    print(f"large square matrix products: {rate / 1e9:.0f} GFLOP/s\n")
    largest = sorted((row(operation, times) for operation in found), key=lambda each: -each["ms a step"])
    print(table(largest[: options.largest], LARGEST))
    write_json(options.json, {"benchmark": "breakdown", "by_kind": kinds, "seconds_a_step": wall, "products": rate})
    return 0


def measure(config: ConfigDict, steps: int) -> tuple[list[Operation], Mapping[str, float], float]:
    """Trains some steps under the profiler.

    Returns:
      The operations of one step, seconds per step of each by its name, and seconds per step by the clock.
    """
    mesh = data_mesh(jax.devices()[:1])
    train_steps, state = steps_and_state(config, mesh)
    at_once = min(steps, most_steps(config, mesh))
    pictures = random_pictures(config, at_once * config.train.batch_size, mesh)
    compiled = train_steps.lower(state, pictures, jnp.int32(at_once)).compile()
    program = hlo.parse(compiled.as_text())
    train = repeated(compiled, state, mesh, pictures, at_once)
    train(steps)
    with tempfile.TemporaryDirectory() as folder:
        wall = profiled(lambda: train(steps), folder)
        times = seconds_by_operation(folder)
    found = list(operations(program, training_step(program)))
    return found, {name: time / steps for name, time in times.items()}, wall / steps


def profiled(function: Callable[[], Any], folder: str) -> float:
    """Calls a function under XLA's profiler, which writes to a folder; returns seconds by the clock."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        return seconds(function)


def seconds_by_operation(folder: str) -> Counter[str]:
    """Returns seconds by the name of an operation, from what the profiler wrote to a folder."""
    total: Counter[str] = Counter()
    for path in Path(folder).rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    if "hlo_op" in dict(event.stats):
                        total[event.name] += event.duration_ns / 1e9
    return total


def by_kind(found: Iterable[Operation], times: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns a row for every kind of operation, as `BY_KIND` names its columns."""
    rows = [row(operation, times) | {"kind": operation.kind} for operation in found]
    whole = sum(each["ms a step"] for each in rows)
    sums = []
    for kind in KINDS:
        inside = [each for each in rows if each["kind"] == kind]
        if inside:
            taken = sum(each["ms a step"] for each in inside)
            total = {"kind": kind, "ms a step": taken, "share (%)": 100 * taken / whole, "operations": len(inside)}
            flops = sum(each["flops"] for each in inside)
            sums.append(total | ({"GFLOP/s": flops / taken / 1e6} if kind == PRODUCT else {}))
    return sums


def row(operation: Operation, times: Mapping[str, float]) -> dict[str, Any]:
    """Returns the row of an operation, as `LARGEST` names its columns, and its `flops`."""
    taken = 1000 * times.get(operation.name, 0.0)
    flops = 2 * operation.multiply_adds * operation.count
    return {
        "operation": operation.name,
        "ms a step": taken,
        "runs": operation.count,
        "GFLOP/s": flops / taken / 1e6 if flops and taken else None,
        "from": "/".join(operation.op_name.split("/")[-3:]),
        "result": operation.result,
        "flops": flops,
    }


if __name__ == "__main__":
    sys.exit(main())
