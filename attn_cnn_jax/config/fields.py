"""What one configuration value may be: its default, a test, and what is allowed in words."""

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import FieldReference


class Field(NamedTuple):
    """One configuration value: where it starts, and what it may be, as a test and in words."""

    default: Any
    allows: Callable[[Any], bool]
    allowed: str
    any_type: bool = False  # whether values of other types than the default's are allowed, such as a tuple for a number


def integer(default: int, low: int, high: int = 2**31 - 1) -> Field:
    def allows(value):
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Field(default, allows, f"an integer from {low} to {high}")


def number(default: float, low: float, high: float = 1e6, *, open_low=False, open_high=True) -> Field:
    def allows(value):
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        # No comparison holds for NaN.
        return (low < value if open_low else low <= value) and (value < high if open_high else value <= high)

    bounds = f"{'above' if open_low else 'from'} {low:g} {'and below' if open_high else 'to'} {high:g}"
    return Field(default, allows, f"a number {bounds}")


def choice(default: Any, *others: Any) -> Field:
    values = (default, *others)
    allows = lambda value: type(value) is type(default) and value in values  # noqa: E731
    return Field(default, allows, "one of " + ", ".join(map(repr, sorted(values))))


def boolean(default: bool) -> Field:
    return Field(default, lambda value: isinstance(value, bool), "True or False")


def text(default: str, allowed: str) -> Field:
    return Field(default, lambda value: isinstance(value, str), allowed)


def integers(default: tuple, low: int, allowed: str, length: int | None = None) -> Field:
    one = integer(0, low)

    def allows(value):
        return isinstance(value, tuple | list) and length in (None, len(value)) and all(map(one.allows, value))

    return Field(default, allows, allowed)


def numbers(default: tuple, allowed: str, low: float = -1e6) -> Field:
    """Returns a field for a tuple of numbers from `low` on."""
    one = number(0.0, low)
    return Field(default, lambda value: isinstance(value, tuple | list) and all(map(one.allows, value)), allowed)


def pairs(default: tuple, allowed: str) -> Field:
    one = integers((), 1, "", length=2)
    return Field(default, lambda value: isinstance(value, tuple | list) and all(map(one.allows, value)), allowed)


# Keys of version 0.1.0 that are called something else now.
RENAMED = {"config.model.kernel": "implementation"}
# Keys of version 0.1.0, where one program trained several networks, and what does it now.
SEVERAL_SEEDS = "train one run directory per seed with attn-cnn train --seeds=0-4"
OBSOLETE = {f"config.train.{key}": SEVERAL_SEEDS for key in ("num_seeds", "same_data_order", "seeds_at_once")}


def unknown_key(path: str, known: Any) -> str:
    """Returns the line that refuses an unknown key, with what was probably meant."""
    parent, _, key = path.rpartition(".")
    if path in OBSOLETE:
        return f"{path} is no longer a configuration key: {OBSOLETE[path]}"
    if new := RENAMED.get(path):
        return f"{path} is now {parent}.{new}"
    close = difflib.get_close_matches(key, list(known), n=1)
    meant = f"did you mean {parent}.{close[0]}?" if close else f"allowed are {', '.join(sorted(known))}"
    return f"{path} is not a configuration key: {meant}"


def defaults(schema: dict) -> dict:
    """Returns the default of every field of a schema, for a ConfigDict, which holds each key to its default's type."""
    return {key: defaults(field) if isinstance(field, dict) else default_of(field) for key, field in schema.items()}


def default_of(field: Field) -> Any:
    """Returns the default; where other types are allowed, as a reference that takes any."""
    return FieldReference(field.default, field_type=object) if field.any_type else field.default
