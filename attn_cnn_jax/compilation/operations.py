"""What a compiled program does: its operations with their bytes, multiply-adds and kind.

An operation is what the device runs as one: a fusion, a matrix product, a copy, a collective. Loops are followed,
their operations counted as often as they run.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from attn_cnn_jax.compilation.hlo import HloArray, Instruction, Program
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
      dtype: of what it multiplies; "f32 highest" where the full precision of float32 is asked for.
      count: how often it runs.
      result: the arrays that it writes, in words.
      opcode: of its instruction, without `-start`.
      op_name: where in the traced program it comes from.
      cycles: of the device's clock, that the compiler expects it to take; compilers for TPUs note them, else 0.
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
    cycles: int = 0


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
    opcode = collective(program, instruction) or instruction.opcode.removesuffix("-start")
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
        cycles=int(found[1]) if (found := re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes)) else 0,
    )


def kind(program: Program, instruction: Instruction, multiply_adds: int) -> str:
    """The kind of an operation, one of KINDS."""
    if collective(program, instruction):
        return COLLECTIVE
    opcodes = {inner.opcode for inner in fused(program, instruction)} or {instruction.opcode.removesuffix("-start")}
    if multiply_adds:
        return PRODUCT
    if opcodes <= MOVES | STILL and opcodes & MOVES - STILL:
        return MOVE
    return ATTENTION if re.search(r"\battention\b", instruction.op_name) else ELEMENTWISE


def collective(program: Program, instruction: Instruction) -> str:
    """The opcode of the collective that an instruction is or fuses, without `-start`; "" where there is none."""
    opcodes = [inner.opcode for inner in fused(program, instruction)] or [instruction.opcode]
    return next((name for opcode in opcodes if (name := opcode.removesuffix("-start")) in COLLECTIVES), "")


def fused(program: Program, instruction: Instruction) -> list[Instruction]:
    """The instructions that a fusion (or an operation wrapped to run asynchronously) computes as one.

    On TPUs a fusion may have others inside it: theirs are among them.
    """
    if instruction.opcode not in ("fusion", "async-start"):
        return []
    direct = [inner for name in instruction.called("calls") for inner in program.computations[name].values()]
    return [i for inner in direct for i in (fused(program, inner) if inner.opcode == "fusion" else [inner])]


def moved_bytes(program: Program, computation: str, instruction: Instruction) -> int:
    """Bytes that an operation reads and writes; of an array that is only sliced or updated in place, that part.

    Of arrays on the chip nothing is read or written. A collective counts twice what it sends or receives, whichever
    is more, also from the chip, and without padding.
    """
    operands, opcode = program.operands(computation, instruction), instruction.opcode
    if collective(program, instruction):
        arrays = ([a for i in group for a in i.results] for group in (operands, [instruction]))
        sent, received = (sum(a._replace(layout="").bytes for a in group) for group in arrays)
        if opcode.endswith("-start") and received > sent:  # its results name the operands too
            received -= sent
        return 2 * max(sent, received)
    if opcode == "fusion":
        return fusion_bytes(program, instruction, operands)
    if "AllocateBuffer" in instruction.attributes:
        return 0
    if opcode in SLICES:
        return moved(instruction.results[0].bytes, operands[0].results[0], instruction.results[0])
    if opcode in ("dynamic-update-slice", "scatter"):
        update = operands[1 if opcode == "dynamic-update-slice" else 2].results[0]
        return moved(update.bytes, update, instruction.results[0])
    if opcode in ("copy-start", "slice-start"):  # the results name the source too
        return moved(min(array.bytes for array in instruction.results[:2]), *instruction.results[:2])
    return size(instruction) + sum(size(operand) for operand in operands)


def moved(num_bytes: int, *places: HloArray) -> int:
    """Bytes read and written where so many go from one place to another: each place on the chip costs none."""
    return num_bytes * sum(not place.on_chip for place in places)


def fusion_bytes(program: Program, instruction: Instruction, operands: list[Instruction]) -> int:
    """Bytes that a fusion reads and writes; see `moved_bytes`."""
    (fusion,) = instruction.called("calls")
    inside, root = program.computations[fusion], program.root(fusion)
    outputs = program.operands(fusion, root) if root.opcode == "tuple" else [root]
    updates = [through_bitcasts(inside, output) for output in outputs]
    in_place = {u.operands[0]: u.name for u in updates if u.opcode == "dynamic-update-slice"}
    total = size(instruction)
    if len(outputs) == len(instruction.results):  # else one output of several arrays
        for update, array in zip(updates, instruction.results, strict=True):
            if update.opcode == "dynamic-update-slice":
                total += moved(inside[update.operands[1]].results[0].bytes - array.bytes, array)
    reads = bytes_read(program, fusion, in_place)
    for number, operand in enumerate(operands):
        whole = sum(array.bytes for array in operand.results)
        if not all(array.on_chip for array in operand.results):
            total += min(whole, reads.get(number, whole))
    return total


def bytes_read(program: Program, fusion: str, in_place: dict[str, str]) -> dict[int, int]:
    """Bytes that a fusion reads of each parameter that it only slices; of others it reads everything.

    Args:
      program: with the fusion.
      fusion: the name of its computation.
      in_place: the names of the updates that write into a parameter, by its name; they do not read it.
    """
    inside = program.computations[fusion]
    users: dict[str, list[Instruction]] = {}
    for inner in inside.values():
        for name in inner.operands:
            users.setdefault(name, []).append(inner)
    found = {}
    for parameter in (inner for inner in inside.values() if inner.opcode == "parameter"):
        read: int | None = 0
        frontier = [parameter]
        while frontier and read is not None:
            here = frontier.pop()
            for user in users.get(here.name, []):
                if user.opcode == "bitcast":
                    frontier.append(user)
                elif user.opcode in SLICES and user.operands[0] == here.name:
                    read += sum(array.bytes for array in user.results)
                elif user.opcode == "fusion":
                    # what a fusion inside this one reads of the parameter
                    within = bytes_read(program, user.called("calls")[0], {})
                    parts = [within.get(n) for n, name in enumerate(user.operands) if name == here.name]
                    read = None if None in parts else read + sum(part or 0 for part in parts)
                elif in_place.get(here.name) != user.name:
                    read = None
                if read is None:
                    break
        if read is not None:
            found[int(parameter.arguments)] = read
    return found


def through_bitcasts(inside: dict[str, Instruction], instruction: Instruction) -> Instruction:
    """The instruction whose result another one only reinterprets."""
    while instruction.opcode == "bitcast" and instruction.operands[0] in inside:
        instruction = inside[instruction.operands[0]]
    return instruction


def size(instruction: Instruction) -> int:
    """Bytes of an instruction's results in the device's memory."""
    return sum(array.bytes for array in instruction.results if not array.on_chip)
