"""The one exception that commands show without a traceback, how they show it, and the commands that messages advise."""

import functools
import io
import os
import shlex
import shutil
import signal
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from attn_cnn_jax import output


class UserError(Exception):
    """An error that the user can fix, in one or two lines: the value at fault, what is allowed, what to do."""


def exits_with_messages(main: Callable[..., int]) -> Callable[..., int]:
    """Decorates a function that returns an exit status: prints errors that the user can fix and returns 1.

    Those are UserError, and what the machine lacks: a file, a permission, room on the disk, memory. Where nobody reads
    standard output any more, as with `| head`, it returns 128 + SIGPIPE. Characters that an output's encoding lacks
    are printed as escapes.
    """

    @functools.wraps(main)
    def wrapped(*args, **kwargs) -> int:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            status = main(*args, **kwargs)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for Python's own flush at the end
            return 128 + signal.SIGPIPE
        except Exception as error:
            message = message_of(error)
            if message is None:
                raise
            output.say(message, sys.stderr)
        return 1

    return wrapped


def message_of(error: Exception) -> str | None:
    """Returns an error as one or two lines for the user; None where it is a mistake of this program."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        what = error.strerror or shortened(error)
        return f"{error.filename}: {what}" if error.filename is not None else what
    names = os.environ.get("JAX_PLATFORMS")
    if names and isinstance(error, RuntimeError) and "Unable to initialize backend" in str(error):
        return f"JAX_PLATFORMS={names}: {shortened(error)}\nset it to what this machine has, such as cpu, or unset it"
    # JAX's own is a RuntimeError; data/ does without JAX
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return f"not enough memory: {shortened(error)}\nchoose a smaller network, batch or image"
    return None


def shortened(value: object, length: int = 120) -> str:
    """Returns the first line of a text or of an error, cut to a length that a message has room for."""
    line = next(iter(str(value).strip().splitlines()), "") or type(value).__name__
    return line if len(line) <= length else f"{line[: length - 3]}..."


def listed(texts: Sequence[str], most: int = 5) -> str:
    """Returns `a, b, c`, or the first few and how many more there are."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


def command_line(*arguments: object) -> str:
    """Returns the line that runs `attn-cnn ARGUMENTS` from the current folder, whichever way the package is installed.

    That is `attn-cnn ...` where the command is on the PATH, `.venv/bin/attn-cnn ...` from a checkout whose environment
    is not activated, and `python -m attn_cnn_jax ...` where there is no such command.
    """
    script, found = Path(sysconfig.get_path("scripts"), "attn-cnn"), shutil.which("attn-cnn")
    if found and (not script.exists() or Path(found).samefile(script)):
        program = ["attn-cnn"]
    elif script.exists():
        program = [os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)]
    else:
        program = [sys.executable, "-m", "attn_cnn_jax"]
    return shlex.join([*program, *map(str, arguments)])
