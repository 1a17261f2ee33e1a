"""Lines for the user."""

import sys
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints lines, at once, to a stream, standard output by default; see `printable`."""
    print(printable(text), file=stream or sys.stdout, flush=True)


def printable(text: str) -> str:
    """Returns a text for a terminal: control characters, as names may have, become escapes such as `\\x1b`.

    Ends of lines stay.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
