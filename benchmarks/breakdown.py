"""Where the time of a training step goes on a CPU: every operation of the compiled program, as XLA's profiler times it.

    python -m benchmarks.breakdown [--config cifar10_cpu] [--steps 40] [--largest 8] [--json FILE]

Trains on random images, on one core: on several XLA starts a product or a large loop in its threads and times the start
alone (`findings/jax_profiler_times_the_start.sh`). A first table sums operations by kind, with the network's FLOPs over
the time of matrix products; a second has the operations that take longest.
"""

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.cli.arguments import at_least_one
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.errors import UserError, exits_with_messages
from attn_cnn_jax.training.mesh import data_mesh
from attn_cnn_jax.training.step import most_steps
from benchmarks.measure import seconds, table, write_json
from benchmarks.networks import random_images, repeated, steps_and_state

PRODUCTS, MOVES, ELEMENTWISE = KINDS = ("matrix products", "copies and transposes", "other elementwise")
MOVING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "transpose", "reshape", "broadcast"}
MOVING |= {"slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "reverse"}
HOLDING = {"while", "conditional", "call"}  # other operations, which are timed too
# `%name = f32[8,8]{1,0} opcode(operands), calls=%computation`; a type may be a tuple, with blanks.
INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?([\w.-]+) = .*?[\])}] ([a-z][\w-]*)\((?:.*?calls=%?([\w.-]+))?", re.MULTILINE
)
COMPUTATION = re.compile(r"^%?([\w.-]+) \(.*?^}", re.MULTILINE | re.DOTALL)
POOL = "XLAEigen"  # in the names of the threads that XLA shares products and large loops among


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="cifar10_cpu", help="name or file of a configuration")
    parser.add_argument("--steps", type=at_least_one, default=40, help="that are timed")
    parser.add_argument("--largest", type=at_least_one, default=8, help="operations that are listed")
    parser.add_argument("--json", metavar="FILE", help="also write what was measured there")
    options = parser.parse_args(argv)
    os.environ["NPROC"] = "1"  # read by XLA when JAX first asks for a device
    if jax.default_backend() != "cpu":
        raise UserError(f"JAX runs on a {jax.default_backend()} here: set JAX_PLATFORMS=cpu")
    config = complete(load_config(options.config))
    text, times, wall = measure(config, options.steps)
    kinds = kinds_of(text)
    rows = by_kind(kinds, times, flops_per_step(config))
    print(table(rows, ("kind", "ms per step", "share (%)", "operations", "GFLOP/s")))
    print(f"a step takes {1000 * wall:.1f} ms, its operations {1000 * times.total():.1f} ms\n")
    operations = [
        {"operation": name, "kind": kinds.get(name), "ms per step": 1000 * taken} for name, taken in times.most_common()
    ]
    print(table(operations[: options.largest], ("operation", "kind", "ms per step")))
    found = {"benchmark": "breakdown", "by_kind": rows, "operations": operations, "seconds_per_step": wall}
    write_json(options.json, found)
    return 0


def measure(config: ConfigDict, steps: int) -> tuple[str, Counter[str], float]:
    """Trains some steps under the profiler.

    Returns:
      The compiled program as text, seconds per step by the name of an operation, and seconds per step by the clock.

    Raises:
      UserError: XLA computed in several threads.
    """
    mesh = data_mesh(jax.devices()[:1])
    train_steps, state = steps_and_state(config, mesh)
    at_once = min(steps, most_steps(config, mesh))
    images = random_images(config, at_once * config.train.batch_size, mesh)
    compiled = train_steps.lower(state, images, jnp.int32(at_once)).compile()
    train = repeated(compiled, state, mesh, images, at_once)
    train(steps)
    profiler = jax.profiler.ProfileOptions()
    profiler.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=profiler):
            wall = seconds(lambda: train(steps))
        (path,) = Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    times: Counter[str] = Counter()
    lines = [line for plane in planes for line in plane.lines]
    for event in (event for line in lines for event in line.events):
        if "hlo_op" in dict(event.stats):
            times[event.name] += event.duration_ns / 1e9 / steps
    if sum(POOL in line.name for line in lines) > 1:
        raise UserError("XLA computed in several threads, which its profiler does not time: set NPROC=1 first")
    text = compiled.as_text()
    for name in {name for name, opcode, _ in INSTRUCTION.findall(text) if opcode in HOLDING}:
        del times[name]
    return text, times, wall / steps


def flops_per_step(config: ConfigDict) -> int:
    """FLOPs of the network's matrix products: those of the forward pass, and two products for each in the backward."""
    return 3 * config.train.batch_size * count_flops(config.model).full


def by_kind(kinds: Mapping[str, str], times: Counter[str], flops: int) -> list[dict]:
    """A row per kind of operation; the rate of matrix products counts those of the network, not the optimizer's."""
    rows = []
    for kind in KINDS:
        taken = [seconds for name, seconds in times.items() if kinds.get(name, ELEMENTWISE) == kind]
        row = {"kind": kind, "ms per step": 1000 * sum(taken), "share (%)": 100 * sum(taken) / times.total()}
        rows.append(row | {"operations": len(taken)})
    return [row | ({"GFLOP/s": flops / row["ms per step"] / 1e6} if row["kind"] == PRODUCTS else {}) for row in rows]


def kinds_of(text: str) -> dict[str, str]:
    """The kind of every operation in the text of a compiled program; a fusion is what it holds."""
    inside = {match[1]: {found[2] for found in INSTRUCTION.finditer(match[0])} for match in COMPUTATION.finditer(text)}
    kinds = {}
    for name, opcode, called in INSTRUCTION.findall(text):
        opcodes = inside.get(called, set()) if called else {opcode}
        if opcodes & {"dot", "convolution"}:
            kinds[name] = PRODUCTS
        else:
            kinds[name] = MOVES if opcodes <= MOVING else ELEMENTWISE
    return kinds


if __name__ == "__main__":
    sys.exit(main())
