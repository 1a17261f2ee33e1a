"""Programs that commands compiled, kept in the user's cache folder for the next command."""

import contextlib
import hashlib
import os
import platform
import sys
from pathlib import Path

from attn_cnn_jax.files import cache_folder

MOST_BYTES = 2**28  # of a folder: then JAX removes what was not used for the longest time


def keep_programs() -> None:
    """Sets JAX's persistent compilation cache for the commands of this process.

    Nothing is kept where the user set JAX_COMPILATION_CACHE_DIR, or where nothing can be written below XDG_CACHE_HOME,
    which is ~/.cache by default and is made where it is not there.
    """
    cache = cache_folder()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or cache is None:
        return
    folder = cache / f"programs-{compiler()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return
    values = {
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": MOST_BYTES,
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # most programs of analysis take less than JAX's second
    }
    for name, value in values.items():
        os.environ.setdefault(name.upper(), str(value))
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)


def compiler() -> str:
    """Returns a name for what compiles here: version of jaxlib, processor and its instruction sets.

    A home folder may be shared by machines of several kinds, and a program for one can end another's process.
    """
    from importlib.metadata import version  # here: help does without

    return f"{version('jaxlib')}-{hashlib.sha256(processor().encode()).hexdigest()[:12]}"


def processor() -> str:
    """Returns what the machine says of its processor, model and instruction sets."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    kinds = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU "))})
    return "\n".join([platform.machine(), *(kinds or [platform.processor()])])
