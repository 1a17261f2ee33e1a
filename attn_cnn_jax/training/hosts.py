"""Several processes of a run: how they join, what they compare before the first step, and how they stop together."""

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from attn_cnn_jax import output
from attn_cnn_jax.config.base import flatten
from attn_cnn_jax.errors import UserError, listed, message_of, shortened
from attn_cnn_jax.runs.directory import MAY_CHANGE, differing
from attn_cnn_jax.training import HEARTBEAT_TIMEOUT

JOIN_TIMEOUT = 300  # seconds for all processes to come
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
REMEDY = "give --coordinator-address=HOST:PORT --num-processes=N --process-id=I, another I for each process"
END_OF_ALL = "start all processes again, each by the same command: they continue from the last checkpoint"


def is_main() -> bool:
    """Returns whether this process writes the run's files and prints."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints a line, once for all processes."""
    if is_main():
        output.say(text)


def connect(address: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the other processes of the run (JAX's distributed runtime); process 0, at `HOST:PORT`, coordinates them.

    None is for what JAX detects, as on a cluster. UserError if the arguments make no sense, the port is taken, or JAX
    cannot join the others.
    """
    if num_processes is not None and not 0 <= (process_id or 0) < num_processes:
        given = f"--num-processes={num_processes} --process-id={process_id}"
        raise UserError(f"{given}: allowed is an integer from 1, and one from 0 below it\n{REMEDY}")
    bind = listening_address(address) if process_id == 0 and address else None
    here, there = f" at {address}" if address else "", f" of {num_processes}" if num_processes else ""
    output.say(f"process {process_id}{there} joins the others{here}, within {JOIN_TIMEOUT} s", sys.stderr)
    try:
        jax.distributed.initialize(
            address,
            num_processes,
            process_id,
            coordinator_bind_address=bind,
            initialization_timeout=JOIN_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--multihost: {shortened(error)}\n{REMEDY}") from error


def listening_address(address: str) -> str | None:
    """Returns where process 0 listens: at its address, so that no other network reaches it; None for JAX's default.

    That is everywhere, for a name that is no address of this machine, as behind a router, and what the variable
    JAX_COORDINATOR_BIND_ADDRESS says. Raises UserError for a port that is taken or forbidden: JAX would crash.
    """
    host, _, port = address.rpartition(":")
    try:
        family, *_, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        socket.create_server(place[:2], family=family).close()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            what = f"--coordinator-address={address}: process 0 cannot listen there: {os.strerror(error.errno)}"
            raise UserError(f"{what}\nchoose another port, the same for all processes") from None
        return None
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return None
    return f"[{place[0]}]:{port}" if family == socket.AF_INET6 else f"{place[0]}:{port}"


@contextlib.contextmanager
def ends_with_the_others() -> Iterator[None]:
    """Exits with status 1 where this process of several or another one fails: JAX would wait minutes for the rest."""
    try:
        yield
    except Exception as error:
        if not jax.distributed.is_initialized():  # a mistake in the flags: there are no others yet
            raise
        lost = f"another process of this run has ended: {shortened(error)}\n{END_OF_ALL}"
        # JAX raises a RuntimeError, also for mistakes in a program, or what went wrong between CPUs as a ValueError.
        is_lost = (isinstance(error, RuntimeError) and "INVALID_ARGUMENT" not in str(error)) or "Gloo" in str(error)
        output.say(message_of(error) or (lost if is_lost else traceback.format_exc()), sys.stderr)
        os._exit(1)


def everyone(value: Any) -> list[Any]:
    """Returns what each process gave, anything that JSON can hold, in their order; all have to call it together."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with jax.transfer_guard("allow"):
        lengths = multihost_utils.process_allgather(np.array([text.size], np.int32))[:, 0]
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: text.size] = text
        rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def check_same(values: Mapping[str, Any]) -> None:
    """Raises UserError, on all processes, that names what differs, unless all give the same values.

    Each computes its part of every step from what it has: with another configuration or other data, the result would
    be that of neither, and nothing would fail.
    """
    first, *others = everyone(dict(values))
    for number, other in enumerate(others, 1):
        if found := differing(first, other, ("on process 0", f"on process {number}")):
            raise UserError(
                f"the processes of this run differ in {listed(found)}\n"
                "start all of them by the same command, on the same data, with the same packages"
            )


def settings(config: ConfigDict) -> dict[str, Any]:
    """Returns what all processes have to be started with: the configuration, and versions of packages."""
    found = {f"config.{key}": value for key, value in flatten(config).items() if key not in MAY_CHANGE}
    return json.loads(json.dumps(found | {f"version of {name}": metadata.version(name) for name in PACKAGES}))


def check_shared(workdir: Path) -> None:
    """Raises UserError, on all processes, unless all see the run directory that process 0 holds."""
    everyone("it is held")
    sees = everyone((workdir / ".lock").exists())
    if not all(sees):
        raise UserError(
            f"process {sees.index(False)} does not see the run directory of process 0, {workdir}\n"
            "give all processes a --workdir on a file system that they share"
        )


@contextlib.contextmanager
def stop_requests() -> Iterator[dict[str, int]]:
    """Notes SIGTERM and Ctrl-C for the loop, as `signal` of the dictionary; a second one ends the process.

    A signal that the process was started to ignore, as `nohup` or a script's `&` does, is ignored.
    """
    stop, before = {"signal": 0}, {}

    def note(number, frame):
        stop["signal"] = number
        signal.signal(number, before[number])
        say("stopping after this step; once more to stop at once without saving")

    with contextlib.suppress(ValueError):  # not the main thread: whoever runs us handles signals
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
