"""Lines for the user, on streams that may be closed, full, or of another encoding: none of that ends a run."""

import contextlib
import io
import os
import sys
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints lines to a stream, standard output by default; where that fails, these and all later ones are dropped.

    Control characters in them, such as a file's name may have, are shown and not obeyed.
    """
    stream = stream or sys.stdout
    try:
        print(printable(text), file=stream, flush=True)
    except (OSError, ValueError):  # nobody reads it, the disk is full, it is closed
        drop(stream)
    except RuntimeError:  # a signal handler, while the same stream is written to
        pass


def printable(text: str) -> str:
    """Returns a text with escapes such as `\\x1b` for what is not printable; ends of lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def drop(stream: TextIO | None) -> None:
    """Sends all that is written to a stream nowhere from now on, its buffer and Python's last flush included."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # pyright: ignore[reportOptionalMemberAccess]
        os.close(nowhere)


def flush() -> None:
    """Writes what standard output holds back; where that fails, drops it and raises the OSError, which names it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop(sys.stdout)
        error.filename = "standard output"
        raise


def open_streams() -> None:
    """Opens the standard streams that are closed, and lets all write characters that their encoding lacks as escapes.

    Without, the next file to be opened would be number 1 or 2, and what libraries print would end in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        elif getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):  # as with PYTHONUNBUFFERED
        # Else `print` would raise, without a name, and argparse would not: the flush at the end says what is full.
        sys.stdout.reconfigure(write_through=False)  # pyright: ignore[reportAttributeAccessIssue]
