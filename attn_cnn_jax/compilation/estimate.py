"""The time that a compiled program should take: a sum over its operations, from their bytes and arithmetic."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import jax

from attn_cnn_jax.compilation import hlo
from attn_cnn_jax.compilation import operations as reading
from attn_cnn_jax.compilation.operations import COLLECTIVE, KINDS, Operation
from attn_cnn_jax.compilation.targets import Chip


class Estimate(NamedTuple):
    """What the operations of a program take on one of several devices that work together.

    Attributes:
      seconds: by kind of operation, of all.
      counts: by kind, operations that run.
      bytes: read and written.
      flops: of matrix products; a multiply-add is two.
      collectives: bytes by opcode.
      largest: the longest operations, alike ones together: what they are, how many run, seconds of all.
    """

    seconds: dict[str, float]
    counts: dict[str, int]
    bytes: int
    flops: int
    collectives: dict[str, int]
    largest: list[tuple[str, int, float]]

    @property
    def total(self) -> float:
        """Seconds of all operations."""
        return sum(self.seconds.values())


def seconds_of(operation: Operation, chip: Chip, devices: int) -> float:
    """Seconds that an operation takes, once: the longest of its memory traffic, its arithmetic, and what XLA expects.

    What an all-reduce sends is twice its bytes, less what stays (a ring); other collectives send them once.
    Launches, caches, and work done side by side are left out.
    """
    if operation.kind == COLLECTIVE:
        passes = 2 if operation.opcode == "all-reduce" else 1
        return passes * (devices - 1) / devices * operation.bytes / 2 / chip.link
    expected = operation.cycles / chip.clock if chip.clock else 0.0
    return max(operation.bytes / chip.bandwidth, 2 * operation.multiply_adds / chip.rate(operation.dtype), expected)


def estimate(operations: Iterable[Operation], chip: Chip, devices: int = 1) -> Estimate:
    """Returns the estimate of operations that run one after another on each of some devices."""
    seconds: dict[str, float] = {kind: 0.0 for kind in KINDS}
    counts: dict[str, int] = {kind: 0 for kind in KINDS}
    collectives: dict[str, int] = defaultdict(int)
    alike: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    num_bytes = flops = 0
    for operation in operations:
        time = operation.count * seconds_of(operation, chip, devices)
        seconds[operation.kind] += time
        counts[operation.kind] += operation.count
        num_bytes += operation.count * operation.bytes
        flops += 2 * operation.count * operation.multiply_adds
        if operation.kind == COLLECTIVE:
            collectives[operation.opcode] += operation.count * operation.bytes // 2  # operands; results as many
        stem = re.sub(r"[.\d]+$", "", operation.name)
        count, so_far = alike[f"{stem} {operation.result}"]
        alike[f"{stem} {operation.result}"] = count + operation.count, so_far + time
    largest = sorted(((name, *both) for name, both in alike.items()), key=lambda row: -row[2])
    return Estimate(seconds, counts, num_bytes, flops, dict(collectives), largest)


def estimate_program(
    compiled: jax.stages.Compiled, chip: Chip, devices: int = 1, *, one_step: bool = False
) -> Estimate:
    """Returns the estimate of a compiled program: of all of it, or of one of the training steps that it repeats."""
    program = hlo.parse(compiled.as_text() or "")
    part = reading.training_step(program) if one_step else program.entry
    return estimate(reading.operations(program, part), chip, devices)
