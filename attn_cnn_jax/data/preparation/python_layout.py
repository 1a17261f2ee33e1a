"""Reads the pickles of CIFAR's python layout without `pickle`, which would call whatever they ask it to.

`pickletools` lists the opcodes, and a small machine carries out those that the layout needs. It knows texts, numbers,
lists, tuples, dicts, and calls of the three NumPy names that an array is made of; these it notes and does not make.
"""

import pickletools
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_OPCODES = 2_000_000  # the largest official file has a quarter of a million
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
VALUES = (
    *("INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINBYTES", "SHORT_BINBYTES"),
)
ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
NAMES = (*ARRAY, "numpy ndarray", "numpy dtype")
MARK = object()


@dataclass
class Call:
    """A name that the pickle would import, what it would call it with, and the state it would then set."""

    name: str
    arguments: tuple = ()
    state: tuple = ()


def loads(data: bytes) -> dict[str, Any]:
    """Returns the dict in a pickle of the python layout.

    Args:
      data: the file's bytes.

    Returns:
      A dict; texts are `str` (bytes read as Latin-1), byte arrays are uint8 arrays.

    Raises:
      ValueError: the pickle is damaged, or holds something that the layout has no need of.
    """
    try:
        content = carry_out(data)
        if not isinstance(content, dict):
            raise ValueError("it holds no dict")
        return {key: as_array(value) if isinstance(value, Call) else value for key, value in content.items()}
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error) as error:
        reason = str(error) if type(error) is ValueError else f"damaged ({type(error).__name__})"
        raise ValueError(reason.splitlines()[0][:200]) from error


def carry_out(data: bytes) -> Any:
    """Returns what the opcodes of a pickle leave on the stack."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count > MAX_OPCODES:
            raise ValueError(f"more than {MAX_OPCODES} pickle opcodes")
        match opcode.name:
            case name if name in VALUES:
                stack.append(argument.decode("latin-1") if isinstance(argument, bytes) else argument)
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case "MARK":
                stack.append(MARK)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "EMPTY_DICT":
                stack.append({})
            case "DICT":
                stack.append(as_dict(pop_to_mark(stack)))
            case "SETITEM":
                items = pop(stack, 2)
                top(stack, dict).update(as_dict(items))
            case "SETITEMS":
                items = pop_to_mark(stack)
                top(stack, dict).update(as_dict(items))
            case "EMPTY_LIST":
                stack.append([])
            case "LIST":
                stack.append(pop_to_mark(stack))
            case "APPEND":
                items = pop(stack, 1)
                top(stack, list).extend(items)
            case "APPENDS":
                items = pop_to_mark(stack)
                top(stack, list).extend(items)
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(pop_to_mark(stack)))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(pop(stack, int(name[-1]))))
            case "GLOBAL":
                if argument not in NAMES:
                    raise ValueError(f"it asks to import {argument!r}, which the layout has no need of")
                stack.append(Call(str(argument)))
            case "REDUCE":
                called, arguments = pop(stack, 2)
                stack.append(Call(called.name, arguments))
            case "BUILD":
                (state,) = pop(stack, 1)
                top(stack, Call).state = state
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack[-1]
            case name:
                raise ValueError(f"it uses the pickle opcode {name}, which the layout has no need of")


def top(stack: list[Any], kind: type) -> Any:
    """Returns the last item, which an opcode is about to change."""
    if not isinstance(stack[-1], kind):
        raise ValueError(f"it changes something that is no {kind.__name__}")
    return stack[-1]


def pop(stack: list[Any], count: int) -> list[Any]:
    """Takes the last items off the stack."""
    if len(stack) < count or MARK in stack[-count:]:
        raise ValueError("damaged (too few items)")
    items = stack[-count:]
    del stack[-count:]
    return items


def pop_to_mark(stack: list[Any]) -> list[Any]:
    """Takes the items after the last mark off the stack, and the mark."""
    items = []
    while (item := stack.pop()) is not MARK:
        items.append(item)
    return items[::-1]


def as_dict(items: list[Any]) -> dict[str, Any]:
    """Returns the dict of keys and values in turn; all keys of the layout are texts."""
    if not all(isinstance(key, str) for key in items[::2]):  # tuples nested on purpose take for ever to hash
        raise ValueError("it has a dict with keys that are not text")
    return dict(zip(items[::2], items[1::2], strict=True))


def as_array(call: Call) -> np.ndarray:
    """Returns the uint8 array that a call of NumPy's `_reconstruct` and its state stand for."""
    if call.name not in ARRAY:
        raise ValueError(f"it holds a call of {call.name!r}, which is no array")
    _, shape, dtype, fortran, data = call.state
    if not isinstance(dtype, Call) or dtype.name != "numpy dtype" or dtype.arguments[0] not in ("u1", "|u1"):
        raise ValueError("it holds an array of something else than bytes")
    flat = np.frombuffer(data.encode("latin-1"), np.uint8)
    return flat.reshape(shape, order="F" if fortran else "C")
