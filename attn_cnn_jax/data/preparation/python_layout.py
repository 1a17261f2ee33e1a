"""Read the pickles of CIFAR's python layout without running them.

`pickle` can be made to call anything that it can import. Here the opcodes are listed by `pickletools` and
carried out by a small machine of our own, which knows texts, numbers, lists, tuples and dicts, and NumPy
arrays of bytes as plain data. It imports nothing and calls nothing; any other opcode or name is refused.
"""

import pickletools
import struct
from dataclasses import dataclass

import numpy as np

_NUMBERS = ("INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2")
_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE")
_BYTES = ("BINBYTES", "SHORT_BINBYTES")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NAMES = (*_ARRAY, "numpy ndarray", "numpy dtype")
_MARK = object()
_MAX_OPCODES = 2_000_000  # the largest official file has a quarter of a million


@dataclass(frozen=True)
class _Name:
    """A name that the pickle would import."""

    text: str


@dataclass
class _Call:
    """What the pickle would make by calling a name; `state` is what it would then set."""

    name: str
    arguments: tuple
    state: tuple = ()


def loads(data):
    """Return the dict in a pickle of the python layout.

    Args:
      data: the file's bytes.

    Returns:
      A dict; texts are `str` (bytes read as Latin-1), byte arrays are uint8 arrays.

    Raises:
      ValueError: the pickle is damaged, or holds something that the layout has no need of.
    """
    try:
        content = _run(data)
        if not isinstance(content, dict):
            raise ValueError("it holds no dict")
        return {key: _array(value) if isinstance(value, _Call) else value for key, value in content.items()}
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error) as error:
        reason = str(error) if type(error) is ValueError else f"damaged ({type(error).__name__})"
        raise ValueError(reason.splitlines()[0][:200]) from error


def _run(data):
    """Carry out the opcodes, and return what they leave."""
    stack, memo = [], {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count > _MAX_OPCODES:
            raise ValueError(f"more than {_MAX_OPCODES} pickle opcodes")
        match opcode.name:
            case name if name in _NUMBERS or name in _TEXTS:
                stack.append(argument)
            case name if name in _BYTES:
                stack.append(argument.decode("latin-1"))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "MARK":
                stack.append(_MARK)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "DICT":
                items = _pop_to_mark(stack)
                stack.append(dict(zip(items[::2], items[1::2], strict=True)))
            case "LIST":
                stack.append(_pop_to_mark(stack))
            case "TUPLE":
                stack.append(tuple(_pop_to_mark(stack)))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(_pop(stack, int(name[-1]))))
            case "APPEND":
                _extend(stack, _pop(stack, 1))
            case "APPENDS":
                _extend(stack, _pop_to_mark(stack))
            case "SETITEM":
                _update(stack, _pop(stack, 2))
            case "SETITEMS":
                _update(stack, _pop_to_mark(stack))
            case "GLOBAL":
                if argument not in _NAMES:
                    raise ValueError(f"it asks to import {argument!r}, which the layout has no need of")
                stack.append(_Name(argument))
            case "REDUCE":
                name, arguments = _pop(stack, 2)
                stack.append(_Call(name.text, arguments))
            case "BUILD":
                (state,) = _pop(stack, 1)
                if not isinstance(stack[-1], _Call):
                    raise ValueError("it sets the state of something that is no array")
                stack[-1].state = state
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack[-1]
            case name:
                raise ValueError(f"it uses the pickle opcode {name}, which the layout has no need of")


def _pop(stack, count):
    """Take the last `count` items."""
    if len(stack) < count or _MARK in stack[-count:]:
        raise ValueError("damaged (too few items)")
    items = stack[-count:]
    del stack[-count:]
    return items


def _pop_to_mark(stack):
    """Take the items after the last mark, and the mark."""
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _extend(stack, items):
    if not isinstance(stack[-1], list):
        raise ValueError("it appends to something that is no list")
    stack[-1].extend(items)


def _update(stack, items):
    if not isinstance(stack[-1], dict):
        raise ValueError("it sets an item of something that is no dict")
    stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _array(call):
    """The array of bytes that a call of NumPy's `_reconstruct` and its state stand for."""
    if call.name not in _ARRAY:
        raise ValueError(f"it holds a call of {call.name!r}, which is no array")
    _, shape, dtype, fortran, data = call.state
    if not isinstance(dtype, _Call) or dtype.name != "numpy dtype" or dtype.arguments[0] not in ("u1", "|u1"):
        raise ValueError("it holds an array of something else than bytes")
    flat = np.frombuffer(data.encode("latin-1"), np.uint8)
    return flat.reshape(shape, order="F" if fortran else "C")
