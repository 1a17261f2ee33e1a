"""Exits when this or another process of a multi-host run has failed: waits for none, and says how to go on.

JAX itself would wait five minutes for the others, which wait for this one; or abort, with a stack trace of C++.
"""

import ctypes
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from attn_cnn_jax.errors import explained, shortened
from attn_cnn_jax.output import printable
from attn_cnn_jax.training.distributed.agreement import Interrupted

HEARTBEAT_TIMEOUT = 30  # seconds without a sign of life after which a process counts as lost
LEAVE_TIMEOUT = 5  # seconds for the others to fail as well, as they do where all have the same mistake
END_OF_ALL = "start all processes again, each by the same command: they go on from the last checkpoint"
UNREACHABLE = f"another process of this run has ended, or cannot be reached\n{END_OF_ALL}"


@contextmanager
def fails_with_the_others() -> Iterator[None]:
    """Exits with status 1, and a line or two on standard error, if what is done in the block fails."""
    with said_abort():  # also while it leaves
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            if not jax.distributed.is_initialized():  # a mistake in the flags: there are no others yet
                raise
            leave(explained(error) or lost_in_words(error) or traceback.format_exc())


def lost_in_words(error: Exception) -> str | None:
    """Returns what to do where JAX's runtime has lost another process; None for any other error."""
    # The runtime raises a RuntimeError, or what went wrong between processors as a ValueError.
    if isinstance(error, RuntimeError) or "Gloo" in str(error):
        return f"another process of this run has ended: {shortened(error)}\n{END_OF_ALL}"
    return None


def leave(message: str) -> None:
    """Exits with status 1, whether the others answer or not."""
    write_error(message)
    farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    farewell.start()
    farewell.join(LEAVE_TIMEOUT)
    os._exit(1)


def write_error(message: str) -> None:
    """Writes to the standard error of the process itself, which works in a signal handler too."""
    os.write(2, f"{printable(message)}\n".encode())


@contextmanager
def said_abort(message: str = UNREACHABLE) -> Iterator[None]:
    """Exits with this message instead of SIGABRT, which JAX's runtime raises in a thread that Python has no hold of."""

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def leave_at_once(number):
        write_error(message)
        os._exit(1)

    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    before = libc.signal(signal.SIGABRT, ctypes.cast(leave_at_once, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGABRT, before)
