"""Checks before the first step that all processes of a run train the same, and see the same run directory.

Each computes its part of every step from what it has: if one had another configuration or other data, the result would
be that of neither, and nothing would fail.
"""

import collections
import contextlib
import json
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.runs.directory import MAY_CHANGE, flatten
from attn_cnn_jax.training.distributed.agreement import is_main

PACKAGES = ("attn-cnn-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
BLOCK = 1024  # texts of up to so many bytes are exchanged by one compiled program


def everyone(value: Any) -> list[Any]:
    """Returns what each process gave, in their order; all have to call it together.

    Args:
      value: anything that JSON can hold.
    """
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with jax.transfer_guard("allow"):
        lengths = multihost_utils.process_allgather(np.array([text.size], np.int32))[:, 0]
        padded = np.zeros(-(-int(lengths.max()) // BLOCK) * BLOCK, np.uint8)
        padded[: text.size] = text
        rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def check_same_devices(devices: Sequence[Any]) -> None:
    """Raises UserError, on all processes, unless each has as many devices: they exchange arrays by device."""
    counts = collections.Counter(device.process_index for device in devices)
    if len(set(counts.values())) > 1 or len(counts) < jax.process_count():
        found = ", ".join(f"process {number} has {counts[number]}" for number in range(jax.process_count()))
        raise UserError(
            f"the processes of this run have different numbers of devices: {found}\n"
            "give each the same number, as by CUDA_VISIBLE_DEVICES or JAX_LOCAL_DEVICE_IDS"
        )


def check_same(values: Mapping[str, Any]) -> None:
    """Raises UserError, on all processes, that names what differs, unless all give the same values."""
    if found := differences(everyone(dict(values))):
        raise UserError(
            f"the processes of this run differ in {listed(found)}\n"
            "start all of them by the same command, on the same data, with the same packages"
        )


def differences(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns in words what differs between processes, given the values of each; empty if nothing does."""
    first, differing = found[0], {}
    for number, other in enumerate(found):
        for name in sorted(first.keys() | other.keys()):
            if first.get(name) != other.get(name):
                here = f"{name} ({first.get(name)!r} on process 0, {other.get(name)!r} on process {number})"
                differing.setdefault(name, here)
    return list(differing.values())


def settings(config: ConfigDict) -> dict[str, Any]:
    """Returns what all processes have to be started with: the configuration, and versions of Python and packages."""
    keys = {f"config.{key}": value for key, value in flatten(config).items() if key not in MAY_CHANGE}
    python = ".".join(map(str, sys.version_info[:2]))
    return json.loads(json.dumps(keys)) | {"version of Python": python} | dict(map(version, PACKAGES))


def version(package: str) -> tuple[str, str | None]:
    """Returns what to call the version of a package, and which is installed; None where it is not."""
    found = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        found = metadata.version(package)
    return f"version of {package}", found


def check_shared(workdir: Path) -> None:
    """Raises UserError, on all processes, unless all see the run directory of process 0, which exists."""
    if jax.process_count() == 1:
        return
    with sign(workdir) as name:
        here = {"sees": (workdir / everyone(name)[0]).exists(), "host": socket.gethostname(), "path": str(workdir)}
        found = everyone(here)
    if missing := [number for number, each in enumerate(found) if not each["sees"]]:
        first, other = found[0], found[missing[0]]
        raise UserError(
            f"process {missing[0]} does not see the run directory of process 0: {other['path']} on {other['host']} is "
            f"not {first['path']} on {first['host']}\ngive all processes a --workdir on a file system that they share"
        )


@contextlib.contextmanager
def sign(workdir: Path) -> Iterator[str]:
    """Has process 0 put a file that nobody knows into a directory, for the block; gives its name there, else ''."""
    if not is_main():
        yield ""
        return
    path = workdir / f".{secrets.token_hex(8)}.shared"
    path.touch()
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)
