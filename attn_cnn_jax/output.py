"""Lines and tables for the user."""

import asyncio
import csv
import io
import logging
import os
import statistics
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, TextIO


def silence_echoes() -> None:
    """For a command's process, to its end: lets Orbax log nothing that it also raises, and show no coroutine it left.

    Such coroutines are collected as late as when the interpreter ends, so nothing is put back.
    """
    show = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed" and not asyncio.iscoroutine(unraisable.object):
            show(unraisable)

    def of_others(_: logging.LogRecord) -> bool:
        # Not by the record's file: absl's own, where absl was imported after this and its logger is a plain one.
        callers = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
        return not any(f"{os.sep}orbax{os.sep}" in name for name in callers)

    def retrieved(record: logging.LogRecord) -> bool:
        return "never retrieved" not in record.getMessage()

    logging.getLogger("absl").addFilter(of_others)
    logging.getLogger("asyncio").addFilter(retrieved)
    sys.unraisablehook = hook


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints lines, at once, to a stream, standard output by default; see `printable`."""
    print(printable(text), file=stream or sys.stdout, flush=True)


def printable(text: str) -> str:
    """Returns a text for a terminal: control characters, as names may have, become escapes such as `\\x1b`.

    Ends of lines stay.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def table(rows: Iterable[Sequence], header: Sequence[str] = (), left: int = 1) -> str:
    """Returns a table for a terminal, its first `left` columns aligned to the left, the others to the right."""
    from tabulate import tabulate  # here: help and errors need no table

    rows = list(rows)
    width = max(map(len, [*rows, header]))
    align = ["left" if n < left else "right" for n in range(width)]
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True, colalign=align)


def columns(rows: Sequence[dict], formats: dict[str, str], left: int = 1) -> str:
    """Returns a table of dictionaries: `formats` has the header of every column and how a row is shown there.

    A value that is missing, None or "", is shown as a dash.
    """

    def cell(form: str, row: dict) -> str:
        try:
            return form.format(**row)
        except (TypeError, ValueError):  # a text or None takes no format of numbers
            return "-"

    return table([[cell(form, row) for form in formats.values()] for row in rows], list(formats), left)


def csv_text(rows: Sequence[dict]) -> str:
    """Returns comma-separated values under a header, the keys; numbers have six significant digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()} for row in rows)
    return text.getvalue()


def with_deviation(values: Sequence[float], form: str) -> str:
    """Returns `mean ± standard deviation` of several values, one value as it is, and no text for none."""
    mean = form.format(statistics.mean(values)) if values else ""
    return f"{mean} ± {form.format(statistics.stdev(values))}" if len(values) > 1 else mean
