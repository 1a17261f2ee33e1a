"""Lines and tables for the user."""

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from tabulate import tabulate


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
    rows = list(rows)
    width = max(map(len, [*rows, header]))
    align = ["left" if n < left else "right" for n in range(width)]
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True, colalign=align)


def csv_text(rows: Sequence[dict]) -> str:
    """Returns comma-separated values under a header, the keys; numbers have six significant digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()} for row in rows)
    return text.getvalue()
