"""Where the training step finds its batches: in a data set that lies on the devices, or in chunks streamed to them.

A streamed chunk is a number of consecutive batches. Which pictures it holds is a function of its first step alone, so
that a run that goes on reads what the uninterrupted run would have read.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, UInt8
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.data.order import order_on_host
from attn_cnn_jax.data.sources import Split
from attn_cnn_jax.data.stored import Lost, Stored, workers_for
from attn_cnn_jax.data.stream import read_ahead
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.training.mesh import Pictures, place, replicated

CHUNK_BYTES = 2**24  # of all devices together: read in a second where reading is slow, copied in a few milliseconds
MAX_STEPS_PER_DISPATCH = 256
GOES_ON = "the same command then goes on from the last checkpoint"

Batch = tuple[UInt8[np.ndarray, "b H W C"], Int[np.ndarray, " b"]]


class Chunk(NamedTuple):
    """Consecutive batches, split over the devices along the pictures of each."""

    images: UInt8[AnyArray, "k b H W C"]
    labels: Int[AnyArray, "k b"]
    first: Int[AnyArray, ""]  # number of the first batch: in training its step


class Steps:
    """The batches of all training steps, in the order of `epoch_order`; of each the rows of this process."""

    def __init__(self, pictures: Stored, seed: int, batch_size: int, rows: Int[np.ndarray, " r"], steps: range):
        """Args: see `Streamed`; rows: which of a batch; those from `batch_size` on repeat the last picture."""
        self.pictures, self.seed, self.batch_size, self.steps = pictures, seed, batch_size, steps
        self.rows = np.minimum(rows, batch_size - 1)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, n: int) -> Batch:
        count = len(self.pictures.labels)
        epoch, position = divmod(self.steps[n], count // self.batch_size)
        order = order_on_host(self.seed, epoch, count)
        indices = order[position * self.batch_size + self.rows]
        return self.pictures.images(indices), self.pictures.labels[indices]


class InOrder:
    """The batches of one evaluation, in the order of the pictures; of each the rows of this process."""

    def __init__(self, pictures: Stored, batch_size: int, rows: Int[np.ndarray, " r"]):
        """Args: see `Steps`; rows past the last picture repeat it."""
        self.pictures, self.batch_size, self.rows = pictures, batch_size, rows

    def __len__(self) -> int:
        return -(-len(self.pictures.labels) // self.batch_size)

    def __getitem__(self, n: int) -> Batch:
        indices = np.minimum(n * self.batch_size + self.rows, len(self.pictures.labels) - 1)
        return self.pictures.images(indices), self.pictures.labels[indices]


class OnDevice:
    """A data set that every device holds whole."""

    def __init__(self, pictures: Split, mesh: Mesh):
        """Copies pictures and labels to all devices."""
        self.pictures = place(Pictures(*pictures), mesh)

    def __len__(self) -> int:
        return len(self.pictures.labels)

    def like(self) -> Pictures:
        """Returns what to compile the training steps for."""
        return self.pictures

    def at(self, step: int) -> Pictures:
        """Returns what the training step gathers its batches from."""
        return self.pictures

    def steps_left(self, step: int) -> int:
        """Returns how many steps what `at(step)` returns is for."""
        return MAX_STEPS_PER_DISPATCH

    def start(self, step: int) -> None:
        """Nothing has to be read ahead."""

    def close(self) -> None:
        """Nothing is open."""


class Streamed:
    """A data set that is read from the disk as training goes; each process reads its share of every batch."""

    def __init__(self, pictures: Stored, config: ConfigDict, mesh: Mesh):
        """Reads nothing yet.

        Args:
          pictures: of the training split.
          config: of the run; read are `seed`, `train.batch_size` and `train.num_epochs`.
          mesh: the devices that a batch is split over.
        """
        self._pictures, self._mesh, self._seed = pictures, mesh, config.seed
        self._batch_size = config.train.batch_size
        self._per_epoch = len(pictures.labels) // self._batch_size
        self._total = config.train.num_epochs * self._per_epoch
        self._size = batches_per_chunk(pictures, self._batch_size, self._per_epoch)
        self._batches = None
        self._chunk, self._steps = None, range(0)

    def __len__(self) -> int:
        return len(self._pictures.labels)

    def like(self) -> Chunk:
        """Returns shapes and types of a chunk, to compile the training steps for."""
        return like(self._pictures, self._size, padded(self._batch_size, self._mesh), self._mesh)

    def start(self, step: int) -> None:
        """Begins to read the chunk of a step, and those after it."""
        self.close()
        first = self._chunk_of(step).start
        rows = rows_of_process(padded(self._batch_size, self._mesh), self._mesh)
        items = Steps(self._pictures, self._seed, self._batch_size, rows, range(first, self._total))
        self._steps = range(first, first)
        with reading():
            self._batches = read_ahead(items, workers=0, ahead=self._size)

    def at(self, step: int) -> Chunk:
        """Returns the chunk that holds the batch of a step; steps come in order, from `start` on.

        Raises:
          UserError: a picture cannot be read any more.
        """
        if step not in self._steps:
            self._chunk = None  # its memory is free before the next one is there
            steps = self._chunk_of(step)
            if steps.start != self._steps.stop or self._batches is None:
                self.start(step)
            self._steps = steps
            self._chunk = next_chunk(self._batches, self._steps, self._size, self._mesh)
        assert self._chunk is not None
        return self._chunk

    def steps_left(self, step: int) -> int:
        """Returns how many steps the chunk of a step is for, from that step on."""
        return self._chunk_of(step).stop - step

    def close(self) -> None:
        """Ends threads and processes that read."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None

    def _chunk_of(self, step: int) -> range:
        """Returns the steps of the chunk that a step belongs to: chunks begin anew in every epoch."""
        epoch, position = divmod(step, self._per_epoch)
        first = epoch * self._per_epoch + position // self._size * self._size
        return range(first, min(first + self._size, (epoch + 1) * self._per_epoch))


class StreamedEvaluation(NamedTuple):
    """Pictures to evaluate on that are read from the disk, each time anew."""

    pictures: Stored

    def chunks(self, batch_size: int, mesh: Mesh) -> Iterator[Chunk]:
        """Yields all pictures in order, in batches of `batch_size`, which the devices share evenly.

        Raises:
          UserError: a picture cannot be read any more.
        """
        items = InOrder(self.pictures, batch_size, rows_of_process(batch_size, mesh))
        size = batches_per_chunk(self.pictures, batch_size, len(items))
        with reading():
            batches = read_ahead(items, workers=workers_for(self.pictures, 0), ahead=size)
        with contextlib.closing(batches):
            for first in range(0, len(items), size):
                yield next_chunk(batches, range(first, min(first + size, len(items))), size, mesh)


def to_evaluate(pictures: Split | Stored, mesh: Mesh) -> Pictures | StreamedEvaluation:
    """Returns an evaluation set as the evaluation takes it: on the devices, or to be read from the disk."""
    if isinstance(pictures, Stored):
        return StreamedEvaluation(pictures)
    return OnDevice(pictures, mesh).pictures


def batches_per_chunk(pictures: Stored, batch_size: int, num_batches: int) -> int:
    """Returns how many batches make a chunk of about CHUNK_BYTES, at most all of them."""
    size = CHUNK_BYTES // (batch_size * int(np.prod(pictures.image_shape)))
    return max(1, min(size, MAX_STEPS_PER_DISPATCH, num_batches))


def padded(batch_size: int, mesh: Mesh) -> int:
    """Returns the size of a batch that is filled up so that the devices share it evenly."""
    return -(-batch_size // mesh.size) * mesh.size


def over_devices(mesh: Mesh) -> NamedSharding:
    """Returns how the arrays of a chunk lie: the second axis split over the devices."""
    return NamedSharding(mesh, PartitionSpec(None, "data"))


def rows_of_process(batch_size: int, mesh: Mesh) -> Int[np.ndarray, " r"]:
    """Returns which pictures of a batch the devices of this process hold, device by device."""
    places = NamedSharding(mesh, PartitionSpec("data")).addressable_devices_indices_map((batch_size,))
    rows = np.arange(batch_size)
    return np.concatenate([rows[places[device]] for device in mesh.local_devices])


def like(pictures: Stored, size: int, batch_size: int, mesh: Mesh) -> Chunk:
    """Returns shapes and types of a chunk of so many batches."""
    there = over_devices(mesh)
    kind: Any = Chunk  # of shapes, not of arrays
    return kind(
        jax.ShapeDtypeStruct((size, batch_size, *pictures.image_shape), np.uint8, sharding=there),
        jax.ShapeDtypeStruct((size, batch_size), np.int32, sharding=there),
        jax.ShapeDtypeStruct((), np.int32, sharding=replicated(mesh)),
    )


def next_chunk(batches: Any, numbers: range, size: int, mesh: Mesh) -> Chunk:
    """Returns the next batches of `read_ahead`, which have these numbers, on the devices, as a chunk of `size` batches.

    A chunk that is not full repeats its last batch.
    """
    with reading():
        found = [next(batches) for _ in numbers]
    found += [found[-1]] * (size - len(found))
    images, labels = zip(*found, strict=True)
    return Chunk(split(images, mesh), split(labels, mesh), place(np.int32(numbers.start), mesh))


def split(batches: tuple[np.ndarray, ...], mesh: Mesh) -> jax.Array:
    """Returns batches, of each the rows of this process, as one array over the devices."""
    share = len(batches[0]) // len(mesh.local_devices)
    shape = (len(batches), share * mesh.size, *batches[0].shape[1:])
    shares = [
        jax.device_put(np.stack([batch[n * share : (n + 1) * share] for batch in batches]), device)
        for n, device in enumerate(mesh.local_devices)
    ]
    return jax.make_array_from_single_device_arrays(shape, over_devices(mesh), shares)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Turns what reading ahead may raise into a UserError that says how to go on."""
    try:
        yield
    except Lost as error:
        raise UserError(f"{error}\n{GOES_ON}") from error
    except Exception as error:  # a process that the system ended, no room for another, what Grain may raise
        raise UserError(f"reading images failed: {shortened(error)}\n{GOES_ON}") from error
