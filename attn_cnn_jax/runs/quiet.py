"""Keeps Orbax and TensorStore from printing tracebacks of what they also raise, and is said in a line or two."""

import contextlib
import gc
import io
import logging
import sys
from collections.abc import Iterator


def worth_saying(record: logging.LogRecord) -> bool:
    """Whether a record of the log may be shown: reading a run is no reason for a warning either."""
    text = record.getMessage()
    raised = "orbax" in record.pathname and record.exc_info
    return not (raised or "directory is read only" in text or "exception was never retrieved" in text)


for name in ("absl", "asyncio"):
    logging.getLogger(name).addFilter(worth_saying)


def ignore_late_answers() -> None:
    """From now on, nothing is printed of reads and writes that end after one beside them has failed.

    TensorStore goes on with them, and finds the event loop closed that waited for them; at what time, nobody knows.
    """
    before = sys.unraisablehook

    def all_but_late_answers(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    if getattr(before, "__name__", None) != all_but_late_answers.__name__:
        sys.unraisablehook = all_but_late_answers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops what is written to standard error, also about what becomes garbage here."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            yield
        finally:
            gc.collect()
