"""Why a checkpoint cannot be saved or read, as errors: it is damaged, or the system fails.

Orbax and TensorStore raise errors whose types tell nothing, so that their texts are searched for the system's words.
"""

import contextlib
import errno
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import orbax.checkpoint as ocp

from attn_cnn_jax.errors import UserError, in_words, shortened

# What the system says that a person can act on.
REASONS = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.ENOENT)))

# Errors that a damaged checkpoint can cause; for all others the checkpoint may be whole.
OF_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ELOOP}
OF_THE_SYSTEM = [*map(os.strerror, errno.errorcode.keys() - OF_DAMAGE), "can't start new thread"]
OF_THE_SYSTEM.sort(key=len, reverse=True)  # "Too many open files in system" before "Too many open files"
OF_THE_SYSTEM += ["MemoryError", "RESOURCE_EXHAUSTED"]  # last: they say less than the system's own words


class Damaged(UserError):
    """A checkpoint that lacks a file, or is not what was saved."""


class Unreadable(UserError):
    """A checkpoint that the system cannot read at the moment; it may be whole."""


class NotSaved(UserError):
    """A checkpoint that could not be written; those before it are whole."""


@contextlib.contextmanager
def not_saved(checkpoints: ocp.CheckpointManager) -> Iterator[None]:
    """Raises NotSaved, with a reason that a person can act on, for whatever goes wrong in saving."""
    try:
        yield
    except Exception as error:  # Orbax raises OSError, ValueError, RuntimeError for a full disk or a folder that went
        text = str(error).replace("NOT_FOUND", os.strerror(errno.ENOENT))  # as TensorStore says it
        reason = next((word for word in REASONS if word in text), None) or shortened(text)
        raise NotSaved(f"cannot save a checkpoint in {checkpoints.directory}: {reason}") from error


def check_shown(checkpoints: ocp.CheckpointManager, step: int) -> None:
    """Raises Unreadable if the system lists a file of a checkpoint, and then fails to show it."""
    folder = Path(checkpoints.directory, str(step))
    try:
        for path in (folder, *folder.rglob("*")):
            os.stat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreadable(checkpoints, step, in_words(error)) from None


def said_by_the_system(error: Exception) -> str | None:
    """Returns the words of the operating system in an error or its causes, whose types tell nothing; else None."""
    text = "".join(traceback.format_exception(error, limit=0))
    return next((words for words in OF_THE_SYSTEM if words in text), None)


def unreadable(checkpoints: ocp.CheckpointManager, step: int, reason: str) -> Unreadable:
    """Returns the error for a checkpoint that the system cannot read."""
    return Unreadable(
        f"the checkpoint of step {step} in {checkpoints.directory} cannot be read: {reason}\n"
        "it may be whole, and stays where it is: once the system can read it, the same command goes on"
    )


def damaged(checkpoints: ocp.CheckpointManager, step: int, reason: str) -> Damaged:
    """Returns the error for a damaged checkpoint."""
    return Damaged(f"the checkpoint of step {step} in {checkpoints.directory} is damaged: {reason}")
