"""What a compiled program does: its operations with their bytes, multiply-adds and kind.

An operation is what the device runs as one: a fusion, a matrix product, a copy, a collective. Loops are followed,
their operations counted as often as they run.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from attn_cnn_jax.compilation.hlo import Instruction, Program
from attn_cnn_jax.compilation.products import products

PRODUCT, MOVE, ATTENTION, ELEMENTWISE, COLLECTIVE = KINDS = (
    "matrix products",
    "copies and transposes",
    "attention, elementwise",
    "other elementwise",
    "collectives",
)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "add-dependency", "domain"),
}
SLICES = ("dynamic-slice", "slice", "gather")
MOVES = {"transpose", "copy", "reshape", "bitcast", "convert", "concatenate", "slice", "pad"}
STILL = {"parameter", "tuple", "get-tuple-element", "constant", "bitcast"}


class Operation(NamedTuple):
    """One operation of a program.

    Attributes:
      name: of its instruction.
      kind: one of KINDS.
      bytes: read from and written to the device's memory, each time.
      multiply_adds: of its matrix products and convolutions, each time.
      dtype: of what it multiplies; "float32 highest" where the full precision of float32 is asked for.
      count: how often it runs.
      result: the arrays that it writes, in words.
      opcode: of its instruction, without `-start`.
      op_name: where in the traced program it comes from.
    """

    name: str
    kind: str
    bytes: int
    multiply_adds: int
    dtype: str
    count: int
    result: str
    opcode: str
    op_name: str


def training_step(program: Program) -> str:
    """Name of the computation that is one training step: the body of the loop over a number of steps not yet known.

    Where no loop is of that kind, the entry of the program.
    """
    for inside in program.computations.values():
        for instruction in inside.values():
            if instruction.opcode == "while" and program.trips(instruction) is None:
                return instruction.called("body")[0]
    return program.entry


def operations(program: Program, computation: str, count: int = 1) -> Iterator[Operation]:
    """The operations of a computation that runs `count` times, those of its loops and calls included.

    Of a conditional all branches count; a loop of unknown length counts once.
    """
    for instruction in program.computations[computation].values():
        opcode = instruction.opcode
        if opcode == "while":
            yield from operations(program, instruction.called("body")[0], count * (program.trips(instruction) or 1))
        elif opcode in ("call", "conditional"):
            for called in instruction.called():
                yield from operations(program, called, count)
        elif opcode not in FREE and not opcode.endswith(("-done", "-update")):
            yield operation(program, computation, instruction, count)


def operation(program: Program, computation: str, instruction: Instruction, count: int = 1) -> Operation:
    """One instruction as an operation."""
    opcode = instruction.opcode.removesuffix("-start")
    multiply_adds, dtype = products(program, computation, instruction)
    return Operation(
        name=instruction.name,
        kind=kind(program, instruction, multiply_adds),
        bytes=moved_bytes(program, computation, instruction),
        multiply_adds=multiply_adds,
        dtype=dtype,
        count=count,
        result=", ".join(str(array) for array in instruction.results[:2]) + (", ..." * (len(instruction.results) > 2)),
        opcode=opcode,
        op_name=instruction.op_name,
    )


def kind(program: Program, instruction: Instruction, multiply_adds: int) -> str:
    """The kind of an operation, one of KINDS."""
    opcodes = {inner.opcode for inner in fused(program, instruction)} or {instruction.opcode.removesuffix("-start")}
    if opcodes & set(COLLECTIVES) or opcodes & {f"{name}-start" for name in COLLECTIVES}:
        return COLLECTIVE
    if multiply_adds:
        return PRODUCT
    if opcodes <= MOVES | STILL and opcodes & MOVES - STILL:
        return MOVE
    return ATTENTION if re.search(r"\battention\b", instruction.op_name) else ELEMENTWISE


def fused(program: Program, instruction: Instruction) -> list[Instruction]:
    """The instructions that a fusion (or an operation wrapped to run asynchronously) computes as one."""
    if instruction.opcode not in ("fusion", "async-start"):
        return []
    return [inner for name in instruction.called("calls") for inner in program.computations[name].values()]


def moved_bytes(program: Program, computation: str, instruction: Instruction) -> int:
    """Bytes that an operation reads and writes; of an array that is only sliced or updated in place, that part."""
    operands = program.operands(computation, instruction)
    if instruction.opcode in SLICES:
        return 2 * size(instruction)
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return 2 * size(operands[1 if instruction.opcode == "dynamic-update-slice" else 2])
    if instruction.opcode == "fusion":
        return fusion_bytes(program, instruction.called("calls")[0], operands, instruction)
    written = 0 if instruction.opcode in ("copy-start", "slice-start") else size(instruction)
    if instruction.opcode in ("copy-start", "slice-start"):  # the results name the source too
        return 2 * min(array.bytes for array in instruction.results[:2])
    if instruction.opcode.endswith("-start"):  # of what a collective starts, its results are written
        written = size(instruction) // 2 if len(instruction.results) > 1 else written
    return written + sum(size(operand) for operand in operands)


def fusion_bytes(program: Program, fusion: str, operands: list[Instruction], instruction: Instruction) -> int:
    """Bytes that a fusion reads and writes; see `moved_bytes`."""
    inside = program.computations[fusion]
    users: dict[str, list[Instruction]] = {}
    for inner in inside.values():
        for name in inner.operands:
            users.setdefault(name, []).append(inner)
    root = program.root(fusion)
    outputs = program.operands(fusion, root) if root.opcode == "tuple" else [root]
    updates = [through_bitcasts(inside, output) for output in outputs]
    in_place = {u.operands[0]: u for u in updates if u.opcode == "dynamic-update-slice"}
    total = sum(
        size(inside[u.operands[1]]) if u.opcode == "dynamic-update-slice" else size(output)
        for u, output in zip(updates, outputs, strict=True)
    )
    total -= sum(array.bytes for array in instruction.results if array.on_chip)
    for parameter in (inner for inner in inside.values() if inner.opcode == "parameter"):
        read, frontier = 0, [parameter]
        while frontier:
            here = frontier.pop()
            for user in users.get(here.name, []):
                if user.opcode == "bitcast":
                    frontier.append(user)
                elif user.opcode in SLICES and user.operands[0] == here.name:
                    read += size(user)
                elif not (here.name in in_place and user is in_place[here.name]):
                    read = size(parameter)
                    frontier.clear()
                    break
        number = int(parameter.arguments)
        on_chip = number < len(operands) and all(array.on_chip for array in operands[number].results)
        total += 0 if on_chip else min(read, size(parameter))
    return max(total, 0)


def through_bitcasts(inside: dict[str, Instruction], instruction: Instruction) -> Instruction:
    """The instruction whose result another one only reinterprets."""
    while instruction.opcode == "bitcast" and instruction.operands[0] in inside:
        instruction = inside[instruction.operands[0]]
    return instruction


def size(instruction: Instruction) -> int:
    """Bytes of an instruction's results in the device's memory."""
    return sum(array.bytes for array in instruction.results if not array.on_chip)
