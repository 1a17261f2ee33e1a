"""Data sets as uint8 arrays: tfds builder -> ArrayRecord -> data source -> arrays, the same way for all."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8
from ml_collections import ConfigDict

from attn_cnn_jax.data.builders import Recipe, Spec, is_own, recipe, recipe_of
from attn_cnn_jax.data.builders.collection import SPLITS
from attn_cnn_jax.data.preparation import cache, store
from attn_cnn_jax.data.preparation.quiet import quiet
from attn_cnn_jax.data.preparation.store import read_origin
from attn_cnn_jax.errors import UserError

log = logging.getLogger(__name__)

READ_AT_ONCE = 1000  # records; one by one takes twice as long


class Split(NamedTuple):
    """Pictures with values 0 .. 255, and their class numbers from 0."""

    images: UInt8[np.ndarray, "n H W C"]
    labels: Int32[np.ndarray, " n"]

    def select(self, chosen: Bool[np.ndarray, " n"]) -> "Split":
        """Returns some of the pictures, in their order."""
        return Split(self.images[chosen], self.labels[chosen])

    def at(self, indices: Sequence[int] | Int[np.ndarray, " n"]) -> "Split":
        """Returns the pictures at these places."""
        return Split(self.images[indices], self.labels[indices])


class Dataset(NamedTuple):
    """All splits in the order of their ids; `class_names[label]` is the name of a label."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    spec: Spec
    validation: Split | None = None  # where the data set has one of its own


def load(which: str | Recipe, data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Returns a data set, after preparing it where it is not there yet.

    `digits` and data of one's own need no network. CIFAR is downloaded as tfds does, if its host answers. Data made
    from a reduced or otherwise unofficial archive is loaded with a warning in the log.

    Args:
      which: one of SPECS, or the recipe of a data set.
      data_dir: where prepared data sets lie; None is the default of tfds, $TFDS_DATA_DIR or ~/tensorflow_datasets.
      download: False never uses the network.

    Raises:
      UserError: the name is unknown, or the data is damaged, or missing and (known within 15 s) out of reach.
    """
    known = recipe(which) if isinstance(which, str) else which
    prepare(known, data_dir, download=download)
    dataset = read_cached(known, data_dir)
    if dataset is None:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # a read-only folder cannot be locked, and nobody replaces it
                stack.enter_context(store.locked(store.folder(known, data_dir), log.warning))
            dataset = read_cached(known, data_dir) or decode(known, data_dir)
    log_origin(known, data_dir, dataset)
    return dataset


def prepare(known: Recipe, data_dir: str | Path | None = None, *, download: bool = True) -> None:
    """Prepares a data set where it is not there yet; raises as `load` does."""
    if not store.is_prepared(known, data_dir):
        store.prepare(known, data_dir, download=download, say=log.info)


def read(known: Recipe, data_dir: str | Path | None = None) -> Dataset:
    """Returns a data set that is prepared in a folder; writes and removes nothing there.

    Raises:
      UserError: it is not there, or damaged.
    """
    require(known, data_dir)
    dataset = read_cached(known, data_dir) or decode(known, data_dir, keep=False)
    log_origin(known, data_dir, dataset)
    return dataset


def require(known: Recipe, data_dir: str | Path | None = None) -> None:
    """Raises UserError unless a data set is prepared in a folder."""
    if not store.is_prepared(known, data_dir):
        raise UserError(
            f"The data set {known.words} is not in {store.folder(known, data_dir)}, where the run's configuration has "
            "it.\nName the folder where it is, or shall be prepared, by --data-dir=DIR."
        )


def log_origin(known: Recipe, data_dir: str | Path | None, dataset: Any) -> None:
    """Says in the log in what a data set, a `Dataset` or on the disk, differs from the official one."""
    folder = store.folder(known, data_dir)
    if remark := describe_origin(folder, dataset.spec, (len(dataset.train.labels), len(dataset.test.labels))):
        log.warning("%s in %s: %s.", known.name, folder, remark)


def prepared_spec(dataset: ConfigDict) -> Spec:
    """Returns what is known of the data set that `config.dataset` describes, which is prepared where it is not yet."""
    known, data_dir = recipe_of(dataset), dataset.data_dir or None
    prepare(known, data_dir)
    return known.spec(store.folder(known, data_dir))


def describe(dataset: ConfigDict) -> tuple[str, ...]:
    """Returns lines on how the user's own pictures of `config.dataset` were prepared; none for other data sets."""
    known = recipe_of(dataset)
    return known.describe(store.folder(known, dataset.data_dir or None)) if is_own(known.name) else ()


def read_cached(known: Recipe, data_dir: str | Path | None) -> Dataset | None:
    """Returns a prepared data set from its cache, or None where no valid cache was made from its present files."""
    folder = store.folder(known, data_dir)
    try:
        made_from = cache.stamp(folder)
        arrays = cache.read(folder, made_from)
        if arrays is None:
            return None
        dataset = assemble(arrays, store.open_builder(known, data_dir), known.spec(folder))
        # Another process may have put new files there meanwhile.
        return dataset if cache.stamp(folder) == made_from else None
    except (OSError, ValueError, KeyError):
        return None


def decode(known: Recipe, data_dir: str | Path | None, keep: bool = True) -> Dataset:
    """Returns a prepared data set from its ArrayRecord files, and writes the cache if it is to be kept.

    To write, its lock should be held.

    Raises:
      UserError: the files are damaged.
    """
    folder = store.folder(known, data_dir)
    builder = store.open_builder(known, data_dir)
    with store.reading(known, data_dir):
        made_from = cache.stamp(folder)
        arrays, spec = {}, known.spec(folder)
        with quiet():
            for split in SPLITS:
                if split in builder.info.splits:
                    arrays[f"{split}_images"], arrays[f"{split}_labels"] = decode_split(builder, split, spec)
        dataset = assemble(arrays, builder, spec)
    if keep:
        cache.write(folder, arrays, made_from)
    return dataset


def decode_split(builder: Any, split: str, spec: Spec) -> Split:
    """Returns a split in the order of its ids.

    Raises:
      Exception: the files are damaged; a missing or cut one may raise no sooner than here, or just yield less.
    """
    source = builder.as_data_source(split)
    expected = builder.info.splits[split].num_examples
    if len(source) != expected:
        raise ValueError(f"{len(source)} {split} pictures where {expected} are announced")
    images = np.empty((expected, *spec.image_shape), np.uint8)
    labels = np.empty(expected, np.int32)
    ids = []
    for start in range(0, expected, READ_AT_ONCE):
        records = source.__getitems__(range(start, min(start + READ_AT_ONCE, expected)))
        for index, record in enumerate(records, start=start):
            images[index], labels[index] = record["image"], record["label"]
            ids.append(record["id"])
    if len(set(ids)) != expected:
        raise ValueError(f"{len(set(ids))} different {split} pictures where {expected} are announced")
    order = np.argsort(ids)  # tfds stores them shuffled
    return Split(images[order], labels[order])


def assemble(arrays: dict[str, np.ndarray], builder: Any, spec: Spec) -> Dataset:
    """Returns the data set of arrays `train_images`, `train_labels`, `test_images`, `test_labels`, ...

    Raises:
      KeyError: there is no training or no test split.
      ValueError: an array has another shape, type or range than the data set has.
    """
    splits = {}
    for split in SPLITS:
        if split == "validation" and f"{split}_images" not in arrays:
            continue
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if (images.dtype, images.shape) != (np.uint8, (len(labels), *spec.image_shape)) or not len(images):
            raise ValueError(f"{split} pictures are {images.dtype} {images.shape}")
        if labels.dtype != np.int32 or labels.ndim != 1:
            raise ValueError(f"{split} labels are {labels.dtype} {labels.shape}")
        check_classes(labels, spec)
        splits[split] = Split(images, labels)
    names = tuple(builder.info.features["label"].names)
    return Dataset(**splits, class_names=names, spec=replace(spec, class_names=names))


def check_classes(labels: Int32[np.ndarray, " n"], spec: Spec) -> None:
    """Raises ValueError for labels of classes that a data set does not have."""
    if not np.all((labels >= 0) & (labels < spec.num_classes)):
        raise ValueError(f"labels from {labels.min()} to {labels.max()} where there are {spec.num_classes} classes")


def describe_origin(folder: Path, spec: Spec, counts: tuple[int, int]) -> str:
    """Returns in what a data set, of so many training and test pictures, is known to differ from the official one."""
    train, test = counts
    if spec.train_examples and (train, test) != (spec.train_examples, spec.test_examples):
        return (
            f"a reduced copy with {train:,} training and {test:,} test pictures "
            f"(the official data set has {spec.train_examples:,} and {spec.test_examples:,})"
        )
    if spec.has_archive and read_origin(folder).get("official", True) is not True:
        return "made from an archive whose SHA-256 is not the official one"
    return ""


def split_validation(split: Any, num_validation: int, seed: int) -> tuple[Any, Any]:
    """Returns (train, validation): `num_validation` pictures set aside, see `for_validation`; both keep their order.

    Of a `Split` or, on the disk, a `stored.Stored`.
    """
    is_validation = for_validation(len(split.labels), num_validation, seed)
    return split.select(~is_validation), split.select(is_validation)


def for_validation(total: int, num_validation: int, seed: int) -> Bool[np.ndarray, " n"]:
    """Returns which of `total` training pictures are set aside, chosen by `seed` alone.

    Args:
      total: number of pictures.
      num_validation: 0 .. total - 1.
      seed: an integer >= 0.

    Raises:
      UserError: num_validation is out of range.
    """
    if not 0 <= num_validation < total:
        raise UserError(
            f"{num_validation} validation pictures cannot be taken from {total} training pictures.\n"
            f"Choose 0 to {total - 1}."
        )
    # NumPy keeps the raw output of a bit generator for ever, but not the order that its shuffles make of it.
    order = np.argsort(np.random.PCG64(seed).random_raw(total), kind="stable")
    is_validation = np.zeros(total, bool)
    is_validation[order[:num_validation]] = True
    return is_validation
