#!/usr/bin/env bash
# absl: whoever asks for its logger before absl is imported takes away where its records come from, those of Orbax and tfds too.
#
# Versions: absl-py 2.5.1, Python 3.11.
# One would expect: `logging.getLogger("absl").addFilter(...)` or `.setLevel(...)` early in a program, before slow imports, to give
# the same logger as later, and `record.pathname`, `record.funcName` to name the code that logged.
# Seen: `logging.getLogger` makes a plain Logger of that name, which absl then takes as it is. The frames of absl that its own class of
# loggers skips are not skipped: every record of every library that logs through absl names absl/logging/__init__.py and a function
# of it. A filter by file or module, as for what Orbax logs, matches nothing or everything; formats with %(filename)s say nothing.
# Where it is met: JAX's libraries log through absl (Orbax, tensorflow-datasets, ml_collections); programs silence them first thing.
# Output: "absl first: ABSLLogger, record of library.py in restore", "logger first: Logger, record of __init__.py in log".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q absl-py==2.5.1 2>/dev/null
cat >"$folder/library.py" <<'PYTHON'
from absl import logging


def restore():
    logging.warning("damaged")
PYTHON
cat >"$folder/program.py" <<'PYTHON'
import logging
import sys

if sys.argv[1] == "absl":
    import absl.logging  # noqa: F401
logger = logging.getLogger("absl")
seen = []
logger.addFilter(lambda record: seen.append((record.filename, record.funcName)))

import library  # noqa: E402

library.restore()
print(f"{sys.argv[1]} first: {type(logger).__name__}, record of {seen[0][0]} in {seen[0][1]}")
PYTHON
cd "$folder"
found=$(for first in absl logger; do venv/bin/python program.py "$first"; done)
echo "$found"
[ "$found" = "absl first: ABSLLogger, record of library.py in restore
logger first: Logger, record of __init__.py in log" ]
