"""What the processes of a run do together: one prints and writes, all take the same steps, all stop together."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from attn_cnn_jax import output


class Interrupted(Exception):
    """The run was asked to stop, has saved, and can go on; `signal` is the signal's number."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.signal = number


def is_main() -> bool:
    """Returns whether this process writes the run's files and prints."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints a line, once for all processes; goes on where that fails."""
    if is_main():
        output.say(text)


def agree(count: int, stop_signal: int) -> tuple[int, int]:
    """Returns what all processes do next: the smallest step count of any, and a stop signal if any has one (else 0)."""
    if jax.process_count() == 1:
        return count, stop_signal
    with jax.transfer_guard("allow"):
        everyone = multihost_utils.process_allgather(np.array([count, stop_signal]))
    return int(everyone[:, 0].min()), int(everyone[:, 1].max())


@contextmanager
def stop_requests() -> Iterator[dict[str, int]]:
    """Notes SIGTERM and Ctrl-C for the loop to act on, as `signal` of the dictionary; a second one stops at once.

    A signal that the process was started to ignore, as `nohup` or a script's `&` does, is ignored.
    """
    stop = {"signal": 0}
    before = {}

    def note(number, frame):
        stop["signal"] = number
        signal.signal(number, before[number])
        say("stopping after this step; once more to stop at once without saving")

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: whoever runs us handles signals
        pass
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
