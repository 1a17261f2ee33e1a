"""A function in a process of its own: what it returns, how much memory it took, or that memory did not suffice."""

import argparse
import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

OUT_OF_MEMORY = "out of memory"
MIB = 2**20
MEMORY_ERRORS = ("can't allocate memory", "out of memory", "resource_exhausted", "bad_alloc", "bad alloc")


def alone(function: Callable, *arguments: Any, memory_limit: float | None = None) -> Any:
    """Calls a module's function in a fresh process and waits for it.

    Args:
      function: of the top level of a module; arguments and result can be pickled.
      memory_limit: GiB of the process's own memory, or None.

    Returns:
      What the function returns, or `OUT_OF_MEMORY`, also where the system has ended the process.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(limited, memory_limit, function, arguments).result()
        except BrokenProcessPool:
            return OUT_OF_MEMORY


def limited(memory_limit: float | None, function: Callable, arguments: tuple) -> Any:
    """What runs in the process of `alone`."""
    if memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory_limit * 2**30),) * 2)
    try:
        return function(*arguments)
    except Exception as error:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in MEMORY_ERRORS):
            return OUT_OF_MEMORY
        raise RuntimeError(f"{type(error).__name__}: {error}") from error  # an error that surely can be pickled


def peak_bytes() -> int:
    """The most memory that this process has held, in bytes.

    Linux keeps `ru_maxrss` when one program starts another: a small child would report its parent's. Its own mark is
    `VmHWM`.
    """
    if (marked := proc_bytes("self/status", "VmHWM")) is not None:
        return marked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def proc_bytes(file: str, name: str) -> int | None:
    """A line of a file in Linux's /proc that counts kilobytes, in bytes; None elsewhere."""
    path = Path("/proc", file)
    if not path.is_file():
        return None
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def forget_peak() -> bool:
    """Lets `peak_bytes` begin anew at what the process holds now; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def memory_for_one() -> float | None:
    """GiB: three quarters of what the machine has free. None beside a GPU, whose own memory is what counts."""
    if Path("/dev/nvidiactl").exists():
        return None
    if (free := proc_bytes("meminfo", "MemAvailable")) is not None:
        return 0.75 * free / 2**30
    return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def add_memory_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory_limit", type=float, metavar="GIB", help="of a process; by default 3/4 of what the machine has free"
    )
