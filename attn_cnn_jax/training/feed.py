"""Where training finds its images: on the devices, or in chunks that a thread reads one ahead.

A chunk is a number of consecutive batches. Which images it holds is a function of its first step alone, so that a run
that is resumed reads what the uninterrupted run would have read.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int, UInt8
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.data.augment import order_on_host
from attn_cnn_jax.data.sets import Split
from attn_cnn_jax.training.mesh import place, rows_of_process, share

CHUNK_BYTES = 2**24  # of all devices together: read in a tenth of a second, copied in a few milliseconds
MAX_STEPS_PER_DISPATCH = 256


class Chunk(NamedTuple):
    """Consecutive batches, split over the devices along the images of each."""

    images: UInt8[AnyArray, "k b H W C"]
    labels: Int[AnyArray, "k b"]
    first: Int[AnyArray, ""]  # step of the first batch


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
        size = CHUNK_BYTES // (self._batch_size * int(np.prod(split.images.shape[1:])))
        self._size = max(1, min(size, MAX_STEPS_PER_DISPATCH, self._per_epoch))  # batches of a chunk
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
            images, labels = (share(each, self._mesh, axis=1) for each in found.result())
            self._data = Chunk(images, labels, place(np.int32(steps.start), self._mesh))
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
