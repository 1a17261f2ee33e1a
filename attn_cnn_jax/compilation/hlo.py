"""Reads the text of a compiled XLA program (HLO): computations, their instructions, and the arrays between them.

The text is what `jax.stages.Compiled.as_text()` returns. Only what the estimate needs is read.
"""

import math
import re
from typing import NamedTuple

BITS = {"pred": 8, "token": 0, "opaque": 0}
HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
NAME = re.compile(r"^ *(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = ")
OPCODE = re.compile(r" *(?P<opcode>[\w\-]+)\(")
ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,]*)\](?P<layout>\{[^}]*\})?")
CALLED = re.compile(r"(calls|to_apply|body|condition|branch_computations|true_computation|false_computation)=")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class HloArray(NamedTuple):
    """An array of a program: type, shape, and layout as the program writes it, such as `1,0:T(8,128)S(1)`."""

    dtype: str
    shape: tuple[int, ...]
    layout: str = ""

    @property
    def on_chip(self) -> bool:
        """Whether it lies in the small memory on the chip, the vector memory of TPUs."""
        return "S(1)" in self.layout

    @property
    def bytes(self) -> int:
        """Size, with the padding of the tiles that TPUs lay arrays out in."""
        return -(-math.prod(padded(self.shape, self.layout)) * bits(self.dtype) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    opcode: str
    results: tuple[HloArray, ...]  # several where the instruction gives a tuple
    operands: tuple[str, ...]  # names of instructions of the same computation
    attributes: str  # the text behind the operands
    arguments: str  # the text between the parentheses: the number of a parameter, the value of a constant

    @property
    def op_name(self) -> str:
        """Where in the traced program it comes from, such as `jit(train_steps)/while/body/attention/dot_general`."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    def called(self, *keys: str) -> list[str]:
        """Names of the computations that it calls, by the attributes `keys` (all without)."""
        names = []
        for match in CALLED.finditer(self.attributes):
            if not keys or match[1] in keys:
                rest = self.attributes[match.end() :]
                listed = rest[1 : rest.index("}")] if rest.startswith("{") else re.split(r"[,\s]", rest, maxsplit=1)[0]
                names += re.findall(r"[\w.\-]+", listed)
        return names


class Program(NamedTuple):
    """A compiled program: instructions by name, by computation, in their order; the entry's name; roots' names."""

    computations: dict[str, dict[str, Instruction]]
    entry: str
    roots: dict[str, str]

    def root(self, computation: str) -> Instruction:
        """The instruction whose result a computation returns."""
        return self.computations[computation][self.roots[computation]]

    def operands(self, computation: str, instruction: Instruction) -> list[Instruction]:
        """The instructions that an instruction reads."""
        inside = self.computations[computation]
        return [inside[name] for name in instruction.operands if name in inside]

    def trips(self, loop: Instruction) -> int | None:
        """How often the body of a `while` runs; None where the program computes it.

        XLA notes it on GPUs; elsewhere it is the one integer that the condition compares with.
        """
        if noted := TRIPS.search(loop.attributes):
            return int(noted[1])
        (condition,) = loop.called("condition")
        inside = self.computations[condition].values()
        limits = [i.arguments for i in inside if i.opcode == "constant" and i.results[0].dtype in ("s32", "s64", "u32")]
        return int(limits[0]) if len(limits) == 1 and limits[0].isdecimal() else None


def bits(dtype: str) -> int:
    """Bits per element of an HLO type such as `bf16`; the number in its name, of complex numbers for both parts."""
    found = re.search(r"\d+", dtype)
    return BITS[dtype] if dtype in BITS else int(found[0]) if found else 32


def padded(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Shape with the axes of each tile rounded up to it: `T(8,128)` tiles the fastest axis by 128, the next by 8."""
    tile = re.search(r"T\(([\d,]+)\)", layout)
    fastest_first = [int(axis) for axis in layout.partition(":")[0].split(",") if axis]
    sizes = list(shape)
    for axis, step in zip(fastest_first, reversed(tile[1].split(",")) if tile else (), strict=False):
        sizes[axis] = -(-sizes[axis] // int(step)) * int(step)
    return tuple(sizes)


def parse(text: str) -> Program:
    """Returns a program from its text."""
    computations: dict[str, dict[str, Instruction]] = {}
    roots, entry, current = {}, "", None
    for line in text.splitlines():
        if current is None:
            if header := HEADER.match(line):
                current = header["name"]
                computations[current] = {}
                entry = current if header["entry"] else entry
        elif line.startswith("}"):
            current = None
        elif name := NAME.match(line):
            instruction = parse_instruction(name["name"], line[name.end() :])
            computations[current][instruction.name] = instruction
            if name["root"]:
                roots[current] = instruction.name
    return Program(computations, entry, roots)


def parse_instruction(name: str, text: str) -> Instruction:
    """Returns the instruction of a line, given what stands behind its name."""
    end = closing(text, 0) if text.startswith("(") else text.index(" ")
    opcode = OPCODE.match(text, end)
    assert opcode, text
    last = closing(text, opcode.end() - 1)
    arguments = text[opcode.end() : last - 1]
    operands = () if opcode["opcode"] in ("constant", "parameter") else tuple(re.findall(r"%([\w.\-]+)", arguments))
    return Instruction(name, opcode["opcode"], arrays(text[:end]), operands, text[last:], arguments)


def arrays(text: str) -> tuple[HloArray, ...]:
    """The arrays in the text of a type, such as `(f32[2,3]{1,0}, s32[])`."""
    return tuple(
        HloArray(m["dtype"], tuple(int(n) for n in m["shape"].split(",") if n), (m["layout"] or "").strip("{}"))
        for m in ARRAY.finditer(text)
    )


def closing(text: str, start: int) -> int:
    """The index behind the parenthesis that closes the one at `start`; quoted parentheses do not occur."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index + 1
    return len(text)
