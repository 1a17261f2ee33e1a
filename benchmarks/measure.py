"""What all benchmarks share: timing in turns, ratios, a table, a JSON file that says where it was measured."""

import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from tabulate import tabulate

from attn_cnn_jax.files import write_atomically

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch")


def seconds(function: Callable[[], Any]) -> float:
    """Wall-clock seconds of one call; the function itself must wait for what it starts."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def turns(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Times functions turn by turn, so that what else the machine does falls on all alike.

    Work goes on and on; a turn begins with the memory and caches that the turn before has left. So each function
    is called twice in its turn, and the second call counts: a step of training may take a quarter less.

    Args:
      functions: by name.
      repeats: number of turns.

    Returns:
      By name, the seconds of each turn.
    """
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            function()
            times[name].append(seconds(function))
    return times


def median_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """The median of the turns' ratios `a / b`."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Returns rows as text under the names of their columns; numbers to the right, four significant digits."""

    def cell(value):
        return f"{value:.4g}" if isinstance(value, float) else value

    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    align = ["right" if all(isinstance(row.get(c), int | float | None) for row in rows) else "left" for c in columns]
    return tabulate(cells, columns, tablefmt="plain", disable_numparse=True, colalign=align)


def write_json(path: Path | str | None, payload: Mapping[str, Any]) -> None:
    """Writes what was measured, beside the machine, the versions and the command; nothing where `path` is None."""
    if path is None:
        return
    where = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": {
            "platform": platform.platform(),
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "devices": [f"{device.platform} {device.device_kind}" for device in jax.devices()],
        },
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES if importlib.util.find_spec(package)},
    }
    write_atomically(path, json.dumps(where | dict(payload), indent=1) + "\n")


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
