"""Joins the processes of a run: where process 0 listens, and what is said of processes that do not come."""

import contextlib
import errno
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import jax

from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.training.distributed.comparison import check_same, check_same_devices
from attn_cnn_jax.training.distributed.lost_peer import HEARTBEAT_TIMEOUT, said_abort

JOIN_TIMEOUT = 300  # seconds for all processes to come
NOT_ALL = (
    f"not all processes of this run came within {JOIN_TIMEOUT} s, or another came with this one's --process-id\n"
    "start all of them, with the same --coordinator-address and --num-processes, each with a --process-id of its own"
)
PATIENCE = 10  # seconds without a word to the user about those that have not
ANY = "[::]"  # all addresses of this machine
REMEDY = "give --coordinator-address=HOST:PORT --num-processes=N --process-id=I, other I for each process"


def connect(address: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the other processes of the run (JAX's distributed runtime); process 0 is the coordinator.

    Args:
      address: `HOST:PORT` of process 0, or None where JAX detects it, as on a cluster.
      num_processes: how many there are, or None likewise.
      process_id: number of this one, from 0, or None likewise.

    Raises:
      UserError: if the arguments make no sense, the port is taken, or the others do not come.
    """
    check_numbers(num_processes, process_id)
    bind = None
    if process_id == 0 and address is not None and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        bind = listening_address(address)
    try:
        with says_who_is_missing(address, num_processes, process_id), said_abort(NOT_ALL):
            if process_id and address is not None:
                wait_for_coordinator(address)
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
    check_same_devices(jax.devices())
    check_same({"--num-processes": num_processes})


def check_numbers(num_processes: int | None, process_id: int | None) -> None:
    """Raises UserError for a number of processes below 1, or a process that is none of them: JAX would wait for it."""
    if num_processes is not None and num_processes < 1:
        raise UserError(f"--num-processes={num_processes}: allowed is an integer from 1")
    if process_id is not None and not 0 <= process_id < (num_processes or process_id + 1):
        allowed = f"0 to {num_processes - 1}" if num_processes else "an integer from 0"
        raise UserError(f"--process-id={process_id}: allowed is {allowed}\n{REMEDY}")


def wait_for_coordinator(address: str) -> None:
    """Returns once process 0 listens; UserError if it does not in time, where JAX would abort with a stack trace."""
    host, _, port = address.rpartition(":")
    ends, reason = time.monotonic() + JOIN_TIMEOUT, "it does not answer"
    while (left := ends - time.monotonic()) > 0:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=left).close()
        except OSError as error:
            reason = error.strerror or reason
            time.sleep(min(1, left))
        else:
            return
    raise UserError(
        f"process 0 cannot be reached at {address} within {JOIN_TIMEOUT} s: {reason}\n"
        "start it, with the same --coordinator-address, and let its firewall pass the other hosts"
    )


def listening_address(address: str) -> str:
    """Returns where process 0 listens: at the address that it was given, so that nobody else's network reaches it.

    Where that is no address of this machine (another name outside, a name that is local to this machine), it listens on
    all of them, and says so.

    Raises:
      UserError: if the port is taken, or cannot be listened to.
    """
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    for found in addresses(name, int(port)):
        if may_listen(found, address) and (is_loopback(name) or not is_loopback(found[0])):
            return f"[{found[0]}]:{port}" if ":" in found[0] else f"{found[0]}:{port}"
    may_listen(("", int(port)), address)
    print(
        f"{host} is no address of this machine that others reach: process 0 listens on all, at port {port}",
        file=sys.stderr,
        flush=True,
    )
    return f"{ANY}:{port}"


def addresses(name: str, port: int) -> list[tuple]:
    """Returns the addresses of a host that a socket can be bound to; none where the name is not known."""
    try:
        return [found[-1] for found in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def may_listen(place: tuple, address: str) -> bool:
    """Returns whether this is a place on this machine; UserError if its port is taken, or forbidden.

    JAX ends with a segmentation fault there.
    """
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as JAX: what was closed a moment ago is free
        try:
            trial.bind(place)
            trial.listen()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise UserError(
                    f"--coordinator-address={address}: process 0 cannot listen there: {error.strerror}\n"
                    "choose another port, the same for all processes"
                ) from None
            return False
    return True


def is_loopback(name: str) -> bool:
    """Returns whether a host's name or address means this machine itself, wherever it is said."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


@contextlib.contextmanager
def says_who_is_missing(address: str | None, num_processes: int | None, process_id: int | None) -> Iterator[None]:
    """Says whom this process waits for, once the block takes longer than PATIENCE."""
    here, there = f" at {address}" if address else "", f" of {num_processes}" if num_processes else ""
    which = f"process {process_id}{there}" if process_id is not None else "this process"
    others = "process 0" if process_id else "the other processes"
    text = f"{which} waits for {others}{here}, up to {JOIN_TIMEOUT} s"
    timer = threading.Timer(PATIENCE, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
