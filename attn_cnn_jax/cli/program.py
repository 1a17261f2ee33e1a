"""The command as a process of its own, which an error ends without waiting, and Ctrl-C in one line at any moment.

Python's own handler of Ctrl-C raises an exception wherever the program is. Where a C library is being imported, that
ends in a traceback of the library or in a crash; in a callback of garbage collection Python drops it. After it, and
after an error, threads of libraries may be left that crash, or that Python would wait for as it shuts down: Orbax's
wait ten minutes for folders that could not be made.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

AGAIN = 0.05  # seconds after which an interruption that Python has dropped is repeated


def run() -> NoReturn:
    """Runs the command line of this process, `attn-cnn SUBCOMMAND ...`, and exits with its status."""
    exit_after(lambda main: main.main())


def run_train() -> NoReturn:
    """Runs the command line of `train.py`, and exits with its status."""
    exit_after(lambda main: main.start("train", sys.argv[1:], program="train.py"))


def exit_after(command: Any) -> NoReturn:
    """Exits with the status that `command(attn_cnn_jax.cli.main)` returns; without waiting after an error or Ctrl-C."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted or imports(frame):
            leave(number)
        interrupted = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where Ctrl-C is ignored, as by nohup
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = interrupt_again
    from attn_cnn_jax import output  # only now: imports take most of the start
    from attn_cnn_jax.cli import main

    status = command(main)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # full, closed, none: Python would make status 120 of it
            output.drop(stream)
    if interrupted or status == 1:
        os._exit(status)  # waits for no thread
    sys.exit(status)


def leave(number: int) -> NoReturn:
    """Ends the process in the middle of whatever it does, as a kill does, but with a word."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(128 + number)


def imports(frame: FrameType | None) -> bool:
    """Returns whether a module is being imported where the program is."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def interrupt_again(unraisable: Any) -> None:
    """Repeats an interruption that came where Python drops exceptions; shows any other of those as Python does."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(AGAIN, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(unraisable)
