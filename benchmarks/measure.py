"""How benchmarks measure: turns, ratios, the memory of a process, matrix products, and a file that says where."""

import importlib.util
import json
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
from tabulate import tabulate

from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.environment import processor

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch")
OUT_OF_MEMORY = "out of memory"
MEMORY_ERRORS = ("can't allocate memory", "out of memory", "resource_exhausted", "bad_alloc", "bad alloc")
MIB = 2**20


def seconds(function: Callable[[], Any]) -> float:
    """Wall-clock seconds of one call; the function itself must wait for what it starts."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def turns(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Times functions turn by turn, so that other work on the machine affects all of them alike.

    A turn begins with the memory and caches that the turn before has left, which may cost a training step a quarter. So
    each function is called twice in its turn, and the second call counts.

    Returns:
      By name, the seconds of each of `repeats` turns.
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


def alone(function: Callable, *arguments: Any) -> Any:
    """Calls a module's function in a fresh process and waits for it.

    Returns:
      What the function returns, or `OUT_OF_MEMORY`, also where the system has ended the process.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(without_memory_errors, function, arguments).result()
        except BrokenProcessPool:
            return OUT_OF_MEMORY


def without_memory_errors(function: Callable, arguments: tuple) -> Any:
    """What the process of `alone` runs."""
    try:
        return function(*arguments)
    except Exception as error:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in MEMORY_ERRORS):
            return OUT_OF_MEMORY
        raise RuntimeError(f"{type(error).__name__}: {error}") from error  # one that can be pickled


def peak_bytes() -> int:
    """The most memory that this process has held, in bytes.

    Linux passes `ru_maxrss` on when one program starts another; `VmHWM` is the process's own.
    """
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as text under the names of their columns; numbers to the right, four significant digits."""
    found = [[row.get(column) for column in columns] for row in rows]
    cells = [[f"{value:.4g}" if isinstance(value, float) else value for value in row] for row in found]
    return tabulate(cells, columns, tablefmt="plain", floatfmt=".4g", numalign="right")


def write_json(path: Path | str | None, payload: Mapping[str, Any]) -> None:
    """Writes what was measured, with the machine, the versions and the command; nothing where `path` is None."""
    if path is None:
        return
    where = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": {
            "platform": platform.platform(),
            **processor(),
            "cores": os.cpu_count(),
            "devices": [f"{device.platform} {device.device_kind}" for device in jax.devices()],
        },
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES if importlib.util.find_spec(package)},
    }
    write_atomically(path, json.dumps(where | dict(payload), indent=1) + "\n")
