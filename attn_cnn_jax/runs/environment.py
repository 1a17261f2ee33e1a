"""Which machine and which versions make a run's numbers: `environment.jsonl` of a run directory, one line per change.

A line has the `step` after which a process took over, and what `describe` returns; with `what`, it says which machine
did something else with the run, such as an evaluation of that step.
"""

import contextlib
import functools
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from attn_cnn_jax import compiling
from attn_cnn_jax.runs.directory import differing
from attn_cnn_jax.runs.metrics import append, cut_back, read_records

FILE = "environment.jsonl"
WIDTHS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sse4_2": "SSE4.2", "sve": "SVE", "asimd": "NEON"}
IN_WORDS = {
    "processor": "{}",
    "vectors": "{}",
    "cores": "cores: {}",
    "jaxlib": "jaxlib {}",
    "device": "{}",
    "xla_flags": "XLA_FLAGS={}",
}


@functools.cache
def processor() -> dict[str, str]:
    """Returns the `processor`'s model and the widest `vectors` that it has; "" where the system does not tell."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return {"processor": name, "vectors": "NEON" if platform.machine() == "arm64" else ""}
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    widest = next((name for flag, name in WIDTHS.items() if flag in words), "")
    return {"processor": (model[1] if model else platform.processor() or platform.machine()).strip(), "vectors": widest}


def cores() -> int:
    """Returns how many CPU cores XLA divides a program among: by how many it divides a sum, whose rounding follows."""
    for name in ("PJRT_NPROC", "NPROC"):
        with contextlib.suppress(ValueError):  # XLA passes over what is no number
            return int(os.environ.get(name, ""))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(mesh_device: Any = None) -> dict[str, Any]:
    """Returns versions, device, processor, XLA_FLAGS and compiler options that shape the numbers of this process."""
    device = mesh_device or jax.local_devices()[0]
    on_cpu = device.platform == "cpu"
    kind = "cpu" if on_cpu else f"{device.platform} {device.device_kind}"
    return {
        "jax": jax.__version__,
        "jaxlib": compiling.JAXLIB,
        "attn_cnn_jax": package_version(),
        "python": platform.python_version(),
        "device": kind,
        **processor(),
        **({"cores": cores()} if on_cpu else {}),
        "xla_flags": compiling.FLAGS_AT_IMPORT,
        "options": compiling.options(device.platform),
    }


def package_version() -> str:
    """Returns the version of this package, "" for a checkout that is not installed."""
    try:
        return metadata.version("attn-cnn-jax")
    except metadata.PackageNotFoundError:
        return ""


def in_words(environment: Mapping[str, Any]) -> str:
    """Returns processor, cores, jaxlib, device and flags as one line; "not recorded" for none."""
    texts = [words.format(environment[key]) for key, words in IN_WORDS.items() if environment.get(key)]
    return ", ".join(texts) or "not recorded"


def read_environments(workdir: Path) -> list[dict[str, Any]]:
    """Returns the records of environment.jsonl, oldest first; [] for a run of a version that kept none."""
    return read_records(workdir / FILE, step=int)


def note(workdir: Path, step: int, what: str) -> None:
    """Notes that this machine did something else than training with a run, such as "evaluated"."""
    append(workdir / FILE, {"step": step, "what": what, **describe()})


def of_step(environments: Sequence[Mapping[str, Any]], step: int) -> Mapping[str, Any] | None:
    """Returns what made the test record of a step: a later evaluation, or the training that passed it; None if unknown.

    That is no other than the last line written before it was.
    """
    evaluated = [each for each in environments if each.get("what") == "evaluated" and each["step"] == step]
    trained = [each for each in environments if "what" not in each and each["step"] <= step]
    return (evaluated or trained or [None])[-1]


def record(workdir: Path, after_step: int, now: Mapping[str, Any]) -> str:
    """Notes which machine continues a run after a step, -1 for a new one; returns a line where it is another."""
    cut_back(workdir / FILE, after_step)
    before = [each for each in read_environments(workdir) if "what" not in each]
    last = {key: before[-1].get(key, now[key]) for key in now} if before else now  # an older version noted less
    changed = differing(last, now, ("before", "now"))
    if changed or not before:
        append(workdir / FILE, {"step": max(0, after_step), **now})
    return f"continuing on another machine or version: {', '.join(changed)}" if changed else ""
