"""Data sets as uint8 arrays: tfds builder -> ArrayRecord -> data source -> arrays, the same way for all."""

import contextlib
import hashlib
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from attn_cnn_jax.data.builders import SPECS, Spec
from attn_cnn_jax.data.preparation import cache, store
from attn_cnn_jax.data.preparation.store import read_origin
from attn_cnn_jax.errors import UserError

log = logging.getLogger(__name__)

READ_AT_ONCE = 1000  # records; one by one takes twice as long


class Split(NamedTuple):
    """Pictures with values 0 .. 255, and their class numbers from 0."""

    images: UInt8[np.ndarray, "n H W C"]
    labels: Int32[np.ndarray, " n"]


class Dataset(NamedTuple):
    """Both splits in the order of their ids; `class_names[label]` is the name of a label."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    spec: Spec


def load(name: str, data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Returns a data set, after preparing it where it is not there yet.

    `digits` needs no network. CIFAR is downloaded as tfds does, if its host answers. Data made from a reduced or
    otherwise unofficial archive is loaded with a warning in the log.

    Args:
      name: one of SPECS.
      data_dir: where prepared data sets lie; None is the default of tfds, $TFDS_DATA_DIR or ~/tensorflow_datasets.
      download: False never uses the network.

    Raises:
      UserError: the name is unknown, or the data is damaged, or missing and (known within 15 s) out of reach.
    """
    if name not in SPECS:
        raise UserError(f"There is no data set {name!r}.\nChoose one of {', '.join(SPECS)}.")
    if not store.is_prepared(name, data_dir):
        store.prepare(name, data_dir, download=download, say=log.info)
    dataset = read_cached(name, data_dir)
    if dataset is None:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # a read-only folder cannot be locked, and nobody replaces it
                stack.enter_context(store.locked(store.folder(name, data_dir), log.warning))
            dataset = read_cached(name, data_dir) or decode(name, data_dir)
    if remark := describe_origin(store.folder(name, data_dir), dataset):
        log.warning("%s in %s: %s.", name, store.folder(name, data_dir), remark)
    return dataset


def read_cached(name: str, data_dir: str | Path | None) -> Dataset | None:
    """Returns a prepared data set from its cache, or None where no valid cache was made from its present files."""
    folder = store.folder(name, data_dir)
    try:
        made_from = cache.stamp(folder)
        arrays = cache.read(folder, made_from)
        if arrays is None:
            return None
        dataset = assemble(arrays, store.open_builder(name, data_dir), SPECS[name])
        # Another process may have put new files there meanwhile.
        return dataset if cache.stamp(folder) == made_from else None
    except (OSError, ValueError):
        return None


def decode(name: str, data_dir: str | Path | None) -> Dataset:
    """Returns a prepared data set from its ArrayRecord files, and writes the cache; its lock should be held.

    Raises:
      UserError: the files are damaged.
    """
    folder = store.folder(name, data_dir)
    builder = store.open_builder(name, data_dir)
    try:
        made_from = cache.stamp(folder)
        arrays = {}
        with store.quiet():
            for split in ("train", "test"):
                arrays[f"{split}_images"], arrays[f"{split}_labels"] = decode_split(builder, split, SPECS[name])
        dataset = assemble(arrays, builder, SPECS[name])
    except Exception as error:  # Riegeli, protobuf, Pillow and tfds each raise their own on damaged files
        raise store.damaged(name, data_dir, error) from error
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
    """Returns the data set of arrays `train_images`, `train_labels`, `test_images`, `test_labels`.

    Raises:
      ValueError: an array has another shape, type or range than the data set has.
    """
    splits = {}
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if (images.dtype, images.shape) != (np.uint8, (len(labels), *spec.image_shape)) or not len(images):
            raise ValueError(f"{split} pictures are {images.dtype} {images.shape}")
        if labels.dtype != np.int32 or labels.ndim != 1:
            raise ValueError(f"{split} labels are {labels.dtype} {labels.shape}")
        if not np.all((labels >= 0) & (labels < spec.num_classes)):
            raise ValueError(f"labels from {labels.min()} to {labels.max()} where there are {spec.num_classes} classes")
        splits[split] = Split(images, labels)
    return Dataset(**splits, class_names=tuple(builder.info.features["label"].names), spec=spec)


def describe_origin(folder: Path, dataset: Dataset) -> str:
    """Returns in what a data set is known to differ from the official one, or an empty text."""
    train, test, spec = len(dataset.train.labels), len(dataset.test.labels), dataset.spec
    if (train, test) != (spec.train_examples, spec.test_examples):
        return (
            f"a reduced copy with {train:,} training and {test:,} test pictures "
            f"(the official data set has {spec.train_examples:,} and {spec.test_examples:,})"
        )
    if spec.has_archive and read_origin(folder).get("official", True) is not True:
        return "made from an archive whose SHA-256 is not the official one"
    return ""


def fingerprint(dataset: Dataset) -> str:
    """Returns a hash of the pictures and labels of both splits, in their order: 32 hexadecimal digits.

    Equal data has equal fingerprints on every machine and however it was prepared.
    """
    digest = hashlib.blake2b(digest_size=16)
    for images, labels in (dataset.train, dataset.test):
        digest.update(repr(images.shape).encode())
        digest.update(np.ascontiguousarray(images, np.uint8).data)
        digest.update(np.ascontiguousarray(labels, "<i4").data)
    return digest.hexdigest()


def split_validation(split: Split, num_validation: int, seed: int) -> tuple[Split, Split]:
    """Returns (train, validation): `num_validation` pictures set aside, chosen by `seed` alone; both keep their order.

    Args:
      split: N pictures.
      num_validation: 0 .. N - 1.
      seed: an integer >= 0.

    Raises:
      UserError: num_validation is out of range.
    """
    total = len(split.labels)
    if not 0 <= num_validation < total:
        raise UserError(
            f"{num_validation} validation pictures cannot be taken from {total} training pictures.\n"
            f"Choose 0 to {total - 1}."
        )
    # NumPy keeps the raw output of a bit generator for ever, but not the order that its shuffles make of it.
    order = np.argsort(np.random.PCG64(seed).random_raw(total), kind="stable")
    is_validation = np.zeros(total, bool)
    is_validation[order[:num_validation]] = True
    train, validation = (
        Split(split.images[chosen], split.labels[chosen]) for chosen in (~is_validation, is_validation)
    )
    return train, validation
