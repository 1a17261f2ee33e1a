"""Keeps Orbax and TensorStore from printing tracebacks of errors that they also raise.

Their threads report what fails where nobody can catch it: a damaged checkpoint, or a full disk, which is said in two
lines, would be followed by hundreds.
"""

import logging
import sys


def worth_saying(record: logging.LogRecord) -> bool:
    """Returns whether a log record is shown: no error that is raised too, and no warning when a run is read."""
    text = record.getMessage()
    raised = "orbax" in record.pathname and record.exc_info
    return not (raised or "directory is read only" in text or "exception was never retrieved" in text)


for name in ("absl", "asyncio"):
    logging.getLogger(name).addFilter(worth_saying)


def ignore_echoes() -> None:
    """Prints nothing, from now on, of reads and writes that end after one beside them has failed.

    They find closed the event loop that waited for them, or are dropped unfinished, at a time that nobody knows.
    """
    before = sys.unraisablehook

    def all_but_echoes(unraisable):
        coroutine = getattr(unraisable.object, "cr_code", None)
        of_orbax = coroutine is not None and "orbax" in coroutine.co_filename
        if not of_orbax and str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    if getattr(before, "__name__", None) != all_but_echoes.__name__:
        sys.unraisablehook = all_but_echoes
