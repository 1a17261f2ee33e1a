"""What a compiled program does: its operations with their bytes, multiply-adds and kind.

An operation is what the device runs as one: a fusion, a matrix product, a copy, a collective. Loops are followed,
their operations counted as often as they run.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attn_cnn_jax.compilation.hlo import HloArray, Instruction, Program

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
CONVOLUTIONS = {"__cudnn$convForward": 0, "__cudnn$convBackwardInput": 1, "__cudnn$convBackwardFilter": 2}


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


def products(program: Program, computation: str, instruction: Instruction) -> tuple[int, str]:
    """Multiply-adds of an instruction and of what it fuses, and the type of what it multiplies ("" without any)."""
    if instruction.opcode in ("fusion", "async-start"):
        total, dtype = 0, ""
        for name in instruction.called("calls"):
            for inner in program.computations[name].values():
                count, inner_dtype = products(program, name, inner)
                total, dtype = total + count, dtype or inner_dtype
        return total, dtype
    shapes = [operand.results[0] for operand in program.operands(computation, instruction) if operand.results]
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    if instruction.opcode == "dot":
        count = dot_multiply_adds(instruction.results[0], shapes[0], numbers(instruction, "lhs_contracting_dims"))
    elif instruction.opcode == "convolution":
        count = convolution_multiply_adds(instruction.attributes, instruction.results[0], shapes[0], shapes[1])
    elif target and "gemm" in target[1].lower() and len(shapes) > 1:
        contracted = re.search(r'"lhs_contracting_dimensions":\["(\d+)"\]', instruction.attributes)
        count = dot_multiply_adds(instruction.results[0], shapes[0], [int(contracted[1])] if contracted else [])
    elif target and target[1] in CONVOLUTIONS and len(shapes) > 1:
        arrays = [shapes[0], shapes[1], instruction.results[0]]
        count = cudnn_multiply_adds(CONVOLUTIONS[target[1]], instruction.attributes, arrays)
    else:
        return 0, ""
    return count, f"{shapes[0].dtype}{' highest' if 'highest' in instruction.attributes else ''}"


def numbers(instruction: Instruction, key: str) -> list[int]:
    """The numbers of an attribute such as `lhs_contracting_dims={1}`."""
    found = re.search(rf"{key}=\{{([\d,]*)\}}", instruction.attributes)
    return [int(n) for n in found[1].split(",") if n] if found else []


def dot_multiply_adds(result: HloArray, left: HloArray, contracted: list[int]) -> int:
    """Multiply-adds of a matrix product: one per entry of the result and of what is contracted."""
    return math.prod(result.shape) * math.prod(left.shape[axis] for axis in contracted)


def convolution_multiply_adds(attributes: str, result: HloArray, left: HloArray, kernel: HloArray) -> int:
    """Multiply-adds of an XLA convolution, without those with padding or between the entries of a dilated operand.

    TPUs have matrix products in this form.
    """
    _, right_labels, out_labels = labels(attributes)
    left_labels = labels(attributes)[0]
    window = dict(re.findall(r"(\w+)=([\w\-x]+)", window_text(attributes)))
    total = math.prod(result.shape[out_labels.index(name)] for name in "bf")
    total *= kernel.shape[right_labels.index("i")]
    for n, name in enumerate(sorted(set(out_labels) - set("bf"))):
        part = {key: value.split("x")[n] for key, value in window.items() if len(value.split("x")) > n}
        padding = int(part.get("pad", "0_0").split("_")[0])
        stride, dilation = int(part.get("stride", 1)), int(part.get("rhs_dilate", 1))
        gap = int(part.get("lhs_dilate", 1))
        queries = np.arange(result.shape[out_labels.index(name)])[:, None] * stride - padding
        keys = np.arange(kernel.shape[right_labels.index(name)])[None, :] * dilation
        at = queries + keys
        length = (left.shape[left_labels.index(name)] - 1) * gap + 1
        total *= int(((at >= 0) & (at < length) & (at % gap == 0)).sum())
    return total


def cudnn_multiply_adds(which: int, attributes: str, arrays: list[HloArray]) -> int:
    """Multiply-adds of a convolution of cuDNN, padding included, forward or either gradient.

    Args:
      which: 0 forward, 1 the gradient of its input, 2 that of its kernel.
      attributes: of the instruction; its labels are those of the forward convolution.
      arrays: both operands and the result.
    """
    output = arrays[{0: 2, 1: 0, 2: 1}[which]]
    kernel = arrays[{0: 1, 1: 1, 2: 2}[which]]
    kernel_labels = labels(attributes)[1]
    return math.prod(output.shape) * math.prod(kernel.shape) // kernel.shape[kernel_labels.index("o")]


def labels(attributes: str) -> tuple[str, str, str]:
    """Labels of the axes of a convolution's input, kernel and result, such as `bf01`, `oi01` and `bf01`."""
    found = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    assert found, attributes
    return found[1], found[2], found[3]


def window_text(attributes: str) -> str:
    """What stands in `window={...}`, "" where nothing does."""
    found = re.search(r"window=\{([^}]*)\}", attributes)
    return found[1] if found else ""
