"""TensorBoard events of a run, each written before training goes on.

tensorboardX's own `SummaryWriter` leaves that to a thread: once the disk is full that thread has ended, and training
waits for it for ever.
"""

import secrets
import socket
import struct
import time
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import image, scalar

from attn_cnn_jax.files import append


class Events:
    """A new file of events in a run directory, of a name that no other file or link there has."""

    def __init__(self, workdir: Path, after_step: int):
        """Begins the file; of the run's earlier ones TensorBoard then shows the events up to `after_step` alone.

        Raises:
          OSError: here and in all methods, if the file cannot be written.
        """
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{secrets.token_hex(4)}"
        self._path = workdir / name
        self._path.touch(exist_ok=False)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=after_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, values: dict[str, float], step: int) -> None:
        """Writes numbers by name."""
        self._write(*(Event(step=step, summary=scalar(name, value)) for name, value in values.items()))

    def picture(self, name: str, pixels: UInt8[np.ndarray, "H W 3"], step: int) -> None:
        """Writes a picture."""
        self._write(Event(step=step, summary=image(name, pixels, dataformats="HWC")))

    def _write(self, *events: Event) -> None:
        for event in events:
            event.wall_time = time.time()
        append(self._path, b"".join(record(event.SerializeToString()) for event in events))


def record(data: bytes) -> bytes:
    """Returns a record of TensorFlow's TFRecord format: length, its checksum, data, their checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, checksum(length), data, checksum(data)))


def checksum(data: bytes) -> bytes:
    """Returns the masked CRC-32C of the format."""
    return struct.pack("<I", masked_crc32c(data))
