"""What values of `config.model` may be, without JAX, so that help and mistyped keys need not wait for it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Option(NamedTuple):
    """A configuration value, of an encoding `config.model.KEY`: its default, a test, and what is allowed in words."""

    default: Any
    allows: Callable[[Any], bool]
    allowed: str
    any_type: bool = False  # whether values of another type than the default's are allowed, such as a tuple


POSITION_SIZE = Option(
    0,
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100_000,
    "an integer from 0 to 100000, 0 for the hidden size",
)
REGISTRY: dict[str, Any] = {}  # encodings by name, see models/attention/encoding.py; empty until models are imported
# Those of this package, and the options that they read.
OURS: dict[str, Mapping[str, Option]] = {
    name: {"position_size": POSITION_SIZE} if name in ("learned", "relative") else {}
    for name in (
        *("absolute_learned", "absolute_sinusoidal", "alibi", "alibi_manhattan", "content", "fire", "kerple"),
        *("learned", "lookhere", "pape", "pape_ri", "quadratic", "quadratic_generalized", "relative"),
        *("rope", "rope_mixed"),
    )
}
IMPLEMENTATIONS = ("auto", "dense", "factorised", "blocked")  # of attention, see models/attention/parts.py

# Blocks per stage of a ResNet, by depth; deeper than 34 they are bottlenecks.
BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BLOCKS |= {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
WIDTH = 64  # channels of a ResNet's first stage; they double from stage to stage


def encodings() -> dict[str, Mapping[str, Option]]:
    """Returns the options of every encoding that is known: ours, and those that the user registered."""
    return OURS | {name: kind.options for name, kind in REGISTRY.items()}
