"""Reads items ahead of their use through Grain: by threads of this process, or by processes of their own."""

import os
import signal
import threading
from multiprocessing import connection, parent_process
from typing import Any

from absl import flags

THREADS = 2  # decoding PNG holds Python's lock: more threads are not faster, processes are
SHARED = 2**16  # bytes from which an array comes out of a process by shared memory and not through a pipe


def read_ahead(items: Any, *, workers: int, ahead: int) -> Any:
    """Returns a Grain iterator over all items in order, to be closed; it has started to read.

    Args:
      items: with length and `items[n]`, which any thread may call for any n; with workers they are pickled.
      workers: number of processes that read; 0 for threads of this one.
      ahead: how many items to hold ready, at least 1.
    """
    import grain  # takes a second

    if not flags.FLAGS.is_parsed():  # Grain asks for flags of its own, which only programs of absl parse
        flags.FLAGS.mark_as_parsed()
    dataset = grain.MapDataset.source(items)
    if workers:
        options = grain.MultiprocessingOptions(workers, per_worker_buffer_size=-(-ahead // workers))
        inline = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        shared = grain.experimental.DatasetOptions(min_shm_size=SHARED)
        inline_dataset = grain.experimental.WithOptionsIterDataset(dataset.to_iter_dataset(inline), shared)
        iterator = iter(inline_dataset.mp_prefetch(options, worker_init_fn=begin_worker))
    else:
        threads = grain.ReadOptions(num_threads=min(THREADS, ahead), prefetch_buffer_size=ahead)
        iterator = iter(dataset.to_iter_dataset(threads))
    iterator.start_prefetch()
    return iterator


def begin_worker(number: int, count: int) -> None:
    """Sets up a process that reads: it ends with its parent, and leaves the parent's devices and signals alone."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    # Sent to all processes at once, by a terminal or a cluster: the parent first saves the state of the run.
    for request in (signal.SIGINT, signal.SIGTERM):
        signal.signal(request, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Ends this process as soon as its parent is gone: killed, the parent asks nobody to stop."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(0)
