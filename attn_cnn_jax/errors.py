"""The one exception that commands show without a traceback, and how they show it."""

import functools
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something that the person at the keyboard can put right.

    The message is one or two lines: the value at fault, what is allowed, what to do.
    Commands print it to standard error and leave with exit status 1.
    """


def says_errors(main: Callable[..., int]) -> Callable[..., int]:
    """Decorates a command's `main(argv) -> exit status`: what a person can put right is said, and gives 1.

    That is a UserError, and what the machine lacks: a file, a permission, room on the disk, memory.
    """

    @functools.wraps(main)
    def wrapped(*args, **kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except Exception as error:
            message = explained(error)
            if message is None:
                raise
        print(message, file=sys.stderr)
        return 1

    return wrapped


def explained(error: Exception) -> str | None:
    """An error as a line or two for the person at the keyboard; None where it is a mistake of this program."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return in_words(error)
    # JAX's own is a RuntimeError; data/ does without JAX
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return f"not enough memory: {shortened(error)}\nchoose a smaller network, batch or picture"
    return None


def in_words(error: OSError) -> str:
    """`path: No such file or directory`."""
    what = error.strerror or shortened(error)
    return f"{error.filename}: {what}" if error.filename is not None else what


def shortened(value: object, length: int = 120) -> str:
    """The first line of a text, or of an error's, cut to a length that a message has room for."""
    line = next(iter(str(value).strip().splitlines()), "") or type(value).__name__
    return line if len(line) <= length else f"{line[: length - 3]}..."
