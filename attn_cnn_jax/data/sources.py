"""Data sets as uint8 arrays: tfds builder -> ArrayRecord -> data source -> arrays, the same way for all."""

import json
import logging
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attn_cnn_jax.errors import UserError

_log = logging.getLogger(__name__)
_READ_AT_ONCE = 1000  # records; one by one takes twice as long


@dataclass(frozen=True)
class Spec:
    """What is known of a data set without reading it.

    image_shape is (H, W, C) in pixels; mean and std are C numbers each, of pictures scaled to [0, 1].
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    train_examples: int
    test_examples: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


SPECS = {
    spec.name: spec
    for spec in (
        Spec("cifar10", (32, 32, 3), 10, 50_000, 10_000, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        Spec("cifar100", (32, 32, 3), 100, 50_000, 10_000, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        Spec("digits", (8, 8, 1), 10, 1_442, 355, (0.3052,), (0.3760,)),
    )
}


class Split(NamedTuple):
    """images: uint8 (N, H, W, C), values 0 .. 255; labels: int32 (N,), class numbers from 0."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """Both splits in the order of their ids; class_names[label] is a label's name."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    spec: Spec


def load(name, data_dir=None, *, download=True):
    """Return a data set, prepared before if need be.

    `digits` needs no network. CIFAR that is not there yet is downloaded as tfds does, if its host answers.
    Data made from a reduced or otherwise unofficial archive is loaded with a warning in the log.

    Args:
      name: one of SPECS.
      data_dir: where prepared data sets lie; None is tfds's default, $TFDS_DATA_DIR or ~/tensorflow_datasets.
      download: False never uses the network.

    Returns:
      A Dataset.

    Raises:
      UserError: the name is unknown, or the data is damaged, or missing and (known within 15 s) out of reach.
    """
    if name not in SPECS:
        raise UserError(f"There is no data set {name!r}.\nChoose one of {', '.join(SPECS)}.")
    from attn_cnn_jax.data.preparation import cache, store

    if not store.is_prepared(name, data_dir):
        store.prepare(name, data_dir, download=download, say=_log.info)
    builder = store.open_builder(name, data_dir)
    folder = store.folder(name, data_dir)
    try:
        arrays = cache.read(folder)
        if not arrays:
            before = cache.fingerprint(folder)
            with store.quiet():
                splits = {split: _read(builder, split, SPECS[name]) for split in ("train", "test")}
            arrays = {f"{split}_{key}": a for split, s in splits.items() for key, a in s._asdict().items()}
            cache.write(folder, arrays, before)
        class_names = tuple(builder.info.features["label"].names)
    except Exception as error:  # Riegeli, protobuf, Pillow and tfds each raise their own on damaged files
        raise store.damaged(name, data_dir, error) from error
    train, test = (Split(arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in ("train", "test"))
    if remark := describe_origin(folder, SPECS[name], len(train.labels), len(test.labels)):
        _log.warning("%s in %s: %s.", name, folder, remark)
    return Dataset(train, test, class_names, SPECS[name])


def describe_origin(folder, spec, train_examples, test_examples):
    """Return in what the data differs from the official data set, or "" if in nothing that is known."""
    if (train_examples, test_examples) != (spec.train_examples, spec.test_examples):
        return (
            f"a reduced copy with {train_examples:,} training and {test_examples:,} test pictures "
            f"(the official data set has {spec.train_examples:,} and {spec.test_examples:,})"
        )
    if (folder / "archive.json").is_file() and read_origin(folder).get("official") is not True:
        return "made from an archive whose SHA-256 is not the official one"
    return ""


def read_origin(folder):
    """Return what a prepared data set notes of the archive it was made from; {} where that is not known."""
    try:
        origin = json.loads((folder / "archive.json").read_text())
    except (OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def split_validation(split, num_validation, seed):
    """Set `num_validation` pictures aside, chosen by `seed` alone; both parts keep their order.

    Args:
      split: a Split of N pictures.
      num_validation: 0 .. N - 1.
      seed: an integer >= 0.

    Returns:
      (train, validation), two Splits.

    Raises:
      UserError: num_validation is out of range.
    """
    total = len(split.labels)
    if not 0 <= num_validation < total:
        raise UserError(
            f"{num_validation} validation pictures cannot be taken from {total} training pictures.\n"
            f"Choose 0 to {total - 1}."
        )
    # NumPy keeps the raw output of a bit generator for good, but not what its shuffles make of it.
    order = np.argsort(np.random.PCG64(seed).random_raw(total), kind="stable")
    is_validation = np.zeros(total, bool)
    is_validation[order[:num_validation]] = True
    return tuple(Split(split.images[chosen], split.labels[chosen]) for chosen in (~is_validation, is_validation))


def _read(builder, split, spec):
    """Decode a split; a missing or cut file may raise no sooner than here, or just yield less."""
    source = builder.as_data_source(split)
    expected = builder.info.splits[split].num_examples
    if len(source) != expected:
        raise ValueError(f"{len(source)} {split} pictures where {expected} are announced")
    images = np.empty((expected, *spec.image_shape), np.uint8)
    labels = np.empty(expected, np.int32)
    ids = []
    for start in range(0, expected, _READ_AT_ONCE):
        records = source.__getitems__(range(start, min(start + _READ_AT_ONCE, expected)))
        for index, record in enumerate(records, start=start):
            images[index], labels[index] = record["image"], record["label"]
            ids.append(record["id"])
    if len(set(ids)) != expected:
        raise ValueError(f"{len(set(ids))} different {split} pictures where {expected} are announced")
    if not np.all((labels >= 0) & (labels < spec.num_classes)):
        raise ValueError(f"labels from {labels.min()} to {labels.max()} where there are {spec.num_classes} classes")
    order = np.argsort(ids)  # tfds stores them shuffled
    return Split(images[order], labels[order])
