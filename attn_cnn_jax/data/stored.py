"""Data sets that stay on the disk: pictures are read from the ArrayRecord files by position, when they are needed.

An index beside the files, made once, has what must be known before: where each picture lies in the order of the ids,
its label, and of every split the hash that the fingerprint of the data has.
"""

import contextlib
import hashlib
import io
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8
from PIL import Image

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import Recipe, Spec
from attn_cnn_jax.data.preparation import cache, store
from attn_cnn_jax.data.preparation.quiet import quiet
from attn_cnn_jax.data.stream import read_ahead
from attn_cnn_jax.errors import UserError

log = logging.getLogger(__name__)

HASHED_AT_ONCE = 256  # pictures
MEMORY_SHARE = 1 / 4  # that decoded pictures may take
WORTH_PROCESSES = 2**28  # bytes of pictures from which processes, which take seconds to start, read them sooner


class Lost(UserError):
    """Pictures that were there when a run began and cannot be read any more."""


class Records:
    """The records of a split by position in its files, which every process opens for itself."""

    def __init__(self, known: Recipe, data_dir: str | Path | None, split: str, image_shape: tuple[int, int, int]):
        """Opens the files of the split `split`, of pictures of one shape `(H, W, C)`.

        Raises:
          UserError: the description of the data set is damaged.
          Exception: a file is damaged or missing.
        """
        self.known, self.data_dir, self.split, self.image_shape = known, data_dir, split, image_shape
        self.source = self.open()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"source": None}

    def open(self) -> Any:
        """Returns the data source of tfds, which leaves pictures encoded."""
        import tensorflow_datasets as tfds

        with quiet():
            decoders: Any = {"image": tfds.decode.SkipDecoding()}
            return store.open_builder(self.known, self.data_dir).as_data_source(self.split, decoders=decoders)

    def read(self, positions: Int[np.ndarray, " n"]) -> list[dict[str, Any]]:
        """Returns the records at these positions, pictures encoded."""
        self.source = self.source or self.open()
        return self.source.__getitems__(positions.tolist())

    def images(self, positions: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W C"]:
        """Returns the pictures at these positions; Lost if they cannot be read."""
        images = np.empty((len(positions), *self.image_shape), np.uint8)
        try:
            for image, record in zip(images, self.read(positions), strict=True):
                with Image.open(io.BytesIO(record["image"])) as picture:
                    image[:] = np.asarray(picture).reshape(self.image_shape)
        except Exception as error:  # Riegeli, protobuf and Pillow each raise their own on damaged files
            raise Lost(str(store.damaged(self.known, self.data_dir, error))) from error
        return images


class Stored(NamedTuple):
    """Pictures on the disk, in an order of their own.

    Attributes:
      records: where they lie; anything with `images(positions)` that can be pickled.
      positions: of each picture in the records.
      labels: class numbers from 0.
      image_shape: `(H, W, C)`.
      digest: hash of all pictures in this order, see data/fingerprint.py; "" where it is not known.
    """

    records: Any
    positions: Int[np.ndarray, " n"]
    labels: Int32[np.ndarray, " n"]
    image_shape: tuple[int, int, int]
    digest: str = ""

    def select(self, chosen: Bool[np.ndarray, " n"]) -> "Stored":
        """Returns some of the pictures, in their order."""
        return self._replace(positions=self.positions[chosen], labels=self.labels[chosen], digest="")

    def at(self, indices: Sequence[int] | Int[np.ndarray, " n"]) -> sources.Split:
        """Returns the pictures at these places, read; Lost if they cannot be."""
        places = np.asarray(indices)
        return sources.Split(self.images(places), self.labels[places])

    def images(self, indices: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W C"]:
        """Returns pictures by their place in the order; Lost if they cannot be read."""
        return self.records.images(self.positions[indices])


class StoredDataset(NamedTuple):
    """A `sources.Dataset` on the disk."""

    train: Stored
    test: Stored
    class_names: tuple[str, ...]
    spec: Spec
    validation: Stored | None = None


AnyDataset = sources.Dataset | StoredDataset


class Blocks:
    """Consecutive pictures, `size` per item: what `read_ahead` reads to see all of them once."""

    def __init__(self, pictures: Stored, size: int):
        self.pictures, self.size = pictures, size

    def __len__(self) -> int:
        return -(-len(self.pictures.labels) // self.size)

    def __getitem__(self, n: int) -> UInt8[np.ndarray, "n H W C"]:
        end = min((n + 1) * self.size, len(self.pictures.labels))
        return self.pictures.images(np.arange(n * self.size, end))


def workers_for(pictures: Stored, workers: int) -> int:
    """Returns how many of so many processes to read all pictures once with: none where threads are done sooner."""
    size = len(pictures.labels) * int(np.prod(pictures.image_shape))
    return workers if size >= WORTH_PROCESSES else 0


def hash_pictures(pictures: Stored, workers: int = 0) -> str:
    """Returns the hash of all pictures, equal to `fingerprint.digest` of their array; Lost if they cannot be read."""
    found = hashlib.blake2b(digest_size=16)
    workers = workers_for(pictures, workers)
    with contextlib.closing(read_ahead(Blocks(pictures, HASHED_AT_ONCE), workers=workers, ahead=4)) as blocks:
        for images in blocks:
            found.update(images.data)
    return found.hexdigest()


def decoded_bytes(known: Recipe, data_dir: str | Path | None) -> int:
    """Returns the size of all pictures of a data set that is prepared."""
    splits = store.open_builder(known, data_dir).info.splits
    count = sum(splits[name].num_examples for name in sources.SPLITS if name in splits)
    return count * int(np.prod(known.spec(store.folder(known, data_dir)).image_shape))


def machine_memory() -> int:
    """Returns the bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def load_fitting(
    known: Recipe, data_dir: str | Path | None, *, keep: bool = True, say: Callable = log.info
) -> AnyDataset:
    """Returns a prepared data set, decoded where memory has room for it, and otherwise on the disk.

    Args:
      known, data_dir, keep, say: as for `load`.

    Raises:
      UserError: the files are damaged.
    """
    if decoded_bytes(known, data_dir) > MEMORY_SHARE * machine_memory():
        return load(known, data_dir, keep=keep, say=say)
    return sources.load(known, data_dir, download=False) if keep else sources.read(known, data_dir)


def load(
    known: Recipe, data_dir: str | Path | None, *, workers: int = 0, keep: bool = True, say: Callable = log.info
) -> StoredDataset:
    """Returns a prepared data set that stays on the disk.

    Args:
      known: its recipe.
      data_dir: where prepared data sets lie, see `sources.load`.
      workers: processes that read all pictures where there is no index yet; 0 for threads.
      keep: whether to write that index into the folder.
      say: called with a line of text before that.

    Raises:
      UserError: the files are damaged.
    """
    folder = store.folder(known, data_dir)
    builder = store.open_builder(known, data_dir)
    with store.reading(known, data_dir):
        spec = known.spec(folder)
        splits = [name for name in sources.SPLITS if name in builder.info.splits]
        records = {name: Records(known, data_dir, name, spec.image_shape) for name in splits}
        made_from = cache.stamp(folder)
        arrays = cache.read(folder, made_from, cache.INDEX)
        if arrays is None:
            count = sum(builder.info.splits[name].num_examples for name in splits)
            say(f"Indexing the {count:,} pictures in {folder}, once")
            arrays = {}
            for name in splits:
                arrays |= index(records[name], builder.info.splits[name].num_examples, spec, workers)
            if keep:
                with contextlib.suppress(OSError), store.locked(folder, log.warning):  # not in a read-only folder
                    cache.write(folder, arrays, made_from, cache.INDEX)
        stored = {
            name: Stored(
                records[name],
                arrays[f"{name}_positions"],
                arrays[f"{name}_labels"],
                spec.image_shape,
                str(arrays[f"{name}_digest"]),
            )
            for name in splits
        }
        names = tuple(builder.info.features["label"].names)
        dataset = StoredDataset(**stored, class_names=names, spec=replace(spec, class_names=names))
    sources.log_origin(known, data_dir, dataset)
    return dataset


def index(records: Records, expected: int, spec: Spec, workers: int) -> dict[str, np.ndarray]:
    """Returns `SPLIT_positions`, `SPLIT_labels` and `SPLIT_digest` of the records of a split.

    Raises:
      ValueError: there are fewer or more than `expected` pictures, or labels of other classes.
      Lost: a picture cannot be read.
    """
    ids, labels = [], []
    for start in range(0, expected, sources.READ_AT_ONCE):
        found = records.read(np.arange(start, min(start + sources.READ_AT_ONCE, expected)))
        ids.append(np.array([record["id"] for record in found]))
        labels += [record["label"] for record in found]
    names = np.concatenate(ids)
    if len(records.source) != expected or len(np.unique(names)) != expected:
        found = f"{len(records.source)} {records.split} pictures, {len(np.unique(names))} of them different"
        raise ValueError(f"{found}, where {expected} are announced")
    classes = np.array(labels, np.int32)
    sources.check_classes(classes, spec)
    order = np.argsort(names)  # tfds stores them shuffled
    pictures = Stored(records, order, classes[order], spec.image_shape)
    return {
        f"{records.split}_positions": pictures.positions,
        f"{records.split}_labels": pictures.labels,
        f"{records.split}_digest": np.array(hash_pictures(pictures, workers)),
    }
