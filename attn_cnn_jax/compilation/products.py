"""Multiply-adds of the matrix products and convolutions of a compiled program."""

import math
import re

import numpy as np

from attn_cnn_jax.compilation.hlo import HloArray, Instruction, Program

# How cuDNN's calls are named, and what they compute, see `cudnn_multiply_adds`.
CONVOLUTIONS = {"__cudnn$convForward": 0, "__cudnn$convBackwardInput": 1, "__cudnn$convBackwardFilter": 2}


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
