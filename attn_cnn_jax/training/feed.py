"""Where training and evaluation find their images: on the devices, or in chunks that a thread reads one ahead.

A chunk is a number of consecutive batches. Which images it holds is a function of its first step alone, so that a run
that is resumed reads what the uninterrupted run would have read.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int, UInt8
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.data.augment import order_on_host
from attn_cnn_jax.data.sets import Split
from attn_cnn_jax.training.mesh import place, split_along

CHUNK_BYTES = 2**24  # of all devices together: read in a tenth of a second, copied in a few milliseconds
MAX_STEPS_PER_DISPATCH = 256
NONE = -1  # the label of what only fills up a batch in evaluation


class Chunk(NamedTuple):
    """Consecutive batches, split over the devices along the images of each."""

    images: UInt8[AnyArray, "k b H W C"]
    labels: Int[AnyArray, "k b"]
    first: Int[AnyArray, ""]  # number of the first batch: in training its step


class Feed:
    """The training set, as training steps take it: whole on every device, or streamed in chunks."""

    def __init__(self, split: Split, config: ConfigDict, mesh: Mesh, *, streamed: bool):
        """Copies the images to all devices; where they are `streamed` from where they are, reads nothing yet.

        Of `config`, that of the run, `seed`, `train.batch_size` and `train.num_epochs` are read; the devices of `mesh`
        share a batch evenly.
        """
        self.streamed, self._split, self._mesh, self._seed = streamed, split, mesh, config.seed
        self._batch_size, self._count = config.train.batch_size, len(split.labels)
        self._per_epoch = self._count // self._batch_size
        self._total = config.train.num_epochs * self._per_epoch
        self._size = batches_per_chunk(split, self._batch_size, self._per_epoch)
        self._data: Any = None if streamed else place(Split(np.asarray(split.images), split.labels), mesh)
        self._steps, self._thread, self._waiting = range(0), ThreadPoolExecutor(1), {}

    def at(self, step: int) -> Split | Chunk:
        """Returns what the training step of this number gathers its batch from; the chunk after it is being read."""
        if self.streamed and step not in self._steps:
            self._data = None  # its memory is free before the next chunk is there
            self._steps = steps = self._chunk_of(step)
            found = self._waiting.get(steps) or self._thread.submit(self._read, steps)
            following = [self._chunk_of(steps.stop)] if steps.stop < self._total else []
            self._waiting = {each: self._thread.submit(self._read, each) for each in following}
            self._data = on_devices(*found.result(), steps.start, self._mesh)
        return self._data

    def steps_left(self, step: int) -> int:
        """Returns how many steps what `at(step)` returns is for, from that step on."""
        return self._chunk_of(step).stop - step if self.streamed else MAX_STEPS_PER_DISPATCH

    def close(self) -> None:
        """Ends the thread that reads."""
        self._thread.shutdown()

    def _read(self, steps: range) -> Split:
        """Returns the batches of a chunk, padded by its last one; of each the rows of this process."""
        epoch, first = divmod(steps.start, self._per_epoch)
        batches = first + np.minimum(np.arange(self._size), len(steps) - 1)
        places = batches[:, None] * self._batch_size + rows_of_process(self._batch_size, self._mesh)
        return self._split.at(order_on_host(self._seed, epoch, self._count)[places])

    def _chunk_of(self, step: int) -> range:
        """Returns the steps of the chunk that a step belongs to: chunks begin anew in every epoch."""
        epoch, position = divmod(step, self._per_epoch)
        first = epoch * self._per_epoch + position // self._size * self._size
        return range(first, min(first + self._size, (epoch + 1) * self._per_epoch))


def evaluation_chunks(
    splits: Mapping[str, Split], batch_size: int, mesh: Mesh
) -> dict[str, Callable[[], Iterator[Chunk]]]:
    """Returns functions that read all images of a split in order, as chunks; past its end labels are NONE.

    Batches are of `config.train.eval_batch_size`, rounded up to what the devices share evenly.
    """
    batch_size = padded(batch_size, mesh)
    rows, counts = rows_of_process(batch_size, mesh), [-(-len(each.labels) // batch_size) for each in splits.values()]
    # One size for all: they share a program.
    size = max(map(batches_per_chunk, splits.values(), [batch_size] * len(counts), counts))

    def chunks(split: Split) -> Iterator[Chunk]:
        def read(first: int) -> tuple[np.ndarray, np.ndarray, int]:
            indices = np.arange(first, first + size)[:, None] * batch_size + rows
            images, labels = split.at(np.minimum(indices, len(split.labels) - 1))
            return images, np.where(indices < len(split.labels), labels, np.int32(NONE)), first

        with ThreadPoolExecutor(1) as thread:
            firsts = range(0, -(-len(split.labels) // batch_size), size)
            found: Iterator[Any] = itertools.chain((thread.submit(read, first) for first in firsts), [None])
            for one, _ in itertools.pairwise(found):  # the other is being read
                yield on_devices(*one.result(), mesh=mesh)

    return {name: functools.partial(chunks, split) for name, split in splits.items()}


def batches_per_chunk(split: Split, batch_size: int, num_batches: int) -> int:
    """Returns how many batches make a chunk of about CHUNK_BYTES, at most all of them."""
    size = CHUNK_BYTES // (batch_size * int(np.prod(split.images.shape[1:])))
    return max(1, min(size, MAX_STEPS_PER_DISPATCH, num_batches))


def padded(batch_size: int, mesh: Mesh) -> int:
    """Returns a batch size rounded up so that the devices share it evenly."""
    return -(-batch_size // mesh.size) * mesh.size


def rows_of_process(batch_size: int, mesh: Mesh) -> Int[np.ndarray, " r"]:
    """Returns which images of a batch the devices of this process hold, device by device."""
    places = split_along(mesh, 0).addressable_devices_indices_map((batch_size,))
    rows = np.arange(batch_size)
    return np.concatenate([rows[places[device]] for device in mesh.local_devices])


def on_devices(images: np.ndarray, labels: np.ndarray, first: int, mesh: Mesh) -> Chunk:
    """Returns a chunk, given the rows of this process of each of its batches; as `jax.transfer_guard` demands."""
    devices = mesh.local_devices

    def put(rows: np.ndarray) -> jax.Array:
        count, mine, *rest = rows.shape
        parts = np.split(rows, len(devices), axis=1)
        copies = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
        shape = count, mine // len(devices) * mesh.size, *rest
        return jax.make_array_from_single_device_arrays(shape, split_along(mesh, 1), copies)

    return Chunk(put(images), put(labels), place(np.int32(first), mesh))
