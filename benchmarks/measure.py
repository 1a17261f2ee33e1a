"""How benchmarks measure: turns, ratios, the memory of a process, matrix products, and a file that says where."""

import importlib.util
import json
import os
import platform
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
import jax.numpy as jnp
from tabulate import tabulate

from attn_cnn_jax.files import write_atomically

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


def matrix_product_rate(dtype: str, side: int = 2048) -> float:
    """FLOPs per second of a product of large square matrices; the best of five."""
    a = jax.random.normal(jax.random.key(0), (side, side), dtype)
    multiply = jax.jit(jnp.matmul)
    multiply(a, a).block_until_ready()
    return 2 * side**3 / min(seconds(lambda: multiply(a, a).block_until_ready()) for _ in range(5))


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
    if (marked := proc_bytes("self/status", "VmHWM")) is not None:
        return marked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def proc_bytes(file: str, name: str) -> int | None:
    """A line of a file in Linux's /proc that counts kilobytes, in bytes; None on other systems."""
    path = Path("/proc", file)
    if not path.is_file():
        return None
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Returns rows as text under the names of their columns; numbers to the right, four significant digits."""

    def cell(value):
        return f"{value:.4g}" if isinstance(value, float) else value

    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    align = ["right" if all(isinstance(row.get(c), int | float | None) for row in rows) else "left" for c in columns]
    return tabulate(cells, columns, tablefmt="plain", disable_numparse=True, colalign=align)


def write_json(path: Path | str | None, payload: Mapping[str, Any]) -> None:
    """Writes what was measured, with the machine, the versions and the command; nothing where `path` is None."""
    if path is None:
        return
    cpuinfo = Path("/proc/cpuinfo")
    cpus = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    where = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": {
            "platform": platform.platform(),
            "processor": next((line[line.index(":") + 2 :] for line in cpus if line.startswith("model name")), ""),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "devices": [f"{device.platform} {device.device_kind}" for device in jax.devices()],
        },
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES if importlib.util.find_spec(package)},
    }
    write_atomically(path, json.dumps(where | dict(payload), indent=1) + "\n")
