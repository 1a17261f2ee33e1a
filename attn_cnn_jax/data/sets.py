"""What a data set is: its splits, what is known of it without its files, and where it comes from."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32
from ml_collections import ConfigDict

from attn_cnn_jax.errors import listed


class Split(NamedTuple):
    """Images and their classes."""

    images: Any  # `(n, H, W, C)` uint8, usually a memory map: what is not indexed is not read
    labels: Int32[np.ndarray, " n"]  # class numbers from 0

    def at(self, indices: Sequence[int] | Int[np.ndarray, "..."]) -> "Split":
        """The images at these places, in memory."""
        return Split(self.images[np.asarray(indices)], self.labels[np.asarray(indices)])

    def select(self, chosen: Bool[np.ndarray, " n"]) -> "Split":
        """Some of the images, in their order; they stay on the disk."""
        return Split(Rows(self.images, np.flatnonzero(chosen)), self.labels[chosen])


class Rows:
    """Some rows of an array, gathered when they are indexed."""

    def __init__(self, array: Any, rows: Int[np.ndarray, " n"]):
        self.array, self.rows = array, rows
        self.shape, self.dtype = (len(rows), *array.shape[1:]), array.dtype
        self.nbytes = int(np.prod(self.shape)) * array.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.array[self.rows[index]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.array[self.rows], dtype)


@dataclass(frozen=True)
class Spec:
    """What networks and training need to know of a data set."""

    name: str  # by which configurations and commands call it
    image_shape: tuple[int, int, int]  # (H, W, C), rows and columns in pixels
    num_classes: int  # labels are 0 .. num_classes - 1
    mean: tuple[float, ...]  # C numbers that normalise images scaled to [0, 1]
    std: tuple[float, ...]  # C numbers, standard deviations, of CIFAR-10 see below
    class_names: tuple[str, ...] = ()  # by label; () where they are known only from the prepared data
    train_examples: int = 0  # training images of the official data set; 0 where there is none
    test_examples: int = 0  # test images, likewise
    has_validation: bool = False  # whether it has a validation split of its own


Fingerprint = dict[str, dict]  # per split `shape`, of its images, and hashes of `pictures` and `labels`


class Dataset(NamedTuple):
    """A data set."""

    train: Split
    test: Split
    spec: Spec
    validation: Split | None = None  # where it has such a split of its own
    digest: Fingerprint | None = None  # where its hashes were kept with it
    notes: tuple[str, ...] = ()  # lines on what was prepared and what was left out

    @property
    def splits(self) -> dict[str, Split]:
        """All splits by name."""
        found = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in found.items() if split is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return sum(split.images.nbytes for split in self.splits.values())


# CIFAR-10: the mean over images of the deviation within each, as most code has it and released weights expect; the
# deviation of all pixels is 0.2470, 0.2435, 0.2616.
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10 = Spec("cifar10", (32, 32, 3), 10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), CLASSES, 50_000, 10_000)
CIFAR100 = Spec("cifar100", (32, 32, 3), 100, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), (), 50_000, 10_000)
DIGITS = Spec("digits", (8, 8, 1), 10, (0.3052,), (0.3760,), tuple("0123456789"), 1_442, 355)
# Its drawings are normalised as the scans are.
STROKES = replace(DIGITS, name="digits_and_strokes", train_examples=2_884)
SPECS = {spec.name: spec for spec in (CIFAR10, CIFAR100, DIGITS, STROKES)}
WITH_SCIKIT_LEARN = (DIGITS.name, STROKES.name)  # need no preparation
OWN = ("folder", "npz")  # names of the user's own data, with config.dataset.path
TFDS = "tfds:"


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and how its images are chosen and brought to one size."""

    name: str  # a name in SPECS or OWN, or `tfds:NAME`
    path: str = ""  # of the user's own data, a folder of class folders or a .npz file
    image_size: tuple[int, int] = (0, 0)  # (H, W) in pixels; (0, 0) for the size that all images have
    test_fraction: float = 0.2  # part of each class that becomes the test split where there is none, 0 to 1
    skip_unreadable: bool = False  # leave out images that cannot be read instead of refusing them
    value_range: tuple[int, int] = (0, 65535)  # of files of 16 bits of grey: what becomes 0 and 255

    @property
    def words(self) -> str:
        """What messages call it."""
        return f"{self.name} {self.path}".strip()

    def options(self) -> list[str]:
        """The words after `attn-cnn prepare` that prepare it."""
        found = [self.name, *(["--path", self.path] if self.path else [])]
        if any(self.image_size):
            found += ["--image-size", "x".join(map(str, self.image_size))]
        if self.test_fraction != Source.test_fraction:
            found += ["--test-fraction", str(self.test_fraction)]
        if self.value_range != Source.value_range:
            found += ["--range", "-".join(map(str, self.value_range))]
        return found + (["--skip-unreadable"] if self.skip_unreadable else [])


def is_own(name: str) -> bool:
    """Whether a name stands for the user's own images or a set of tfds; all about those is in the data."""
    return name in OWN or name.startswith(TFDS)


def source_of(dataset: ConfigDict) -> Source:
    """Where the data set that `config.dataset` describes comes from."""
    size = dataset["image_size"]
    size = (size, size) if isinstance(size, int) else tuple(size)
    choices = dataset["test_fraction"], dataset["skip_unreadable"], tuple(dataset["range"])
    return Source(dataset["name"], dataset["path"], size, *choices)


def split_validation(split: Split, num_validation: int, seed: int) -> tuple[Split, Split]:
    """Sets images aside by class, chosen by `seed` alone: returns (train, validation); both keep their order."""
    is_validation, ranks = np.zeros(len(split.labels), bool), random_ranks(len(split.labels), seed)
    classes, counts = np.unique(split.labels, return_counts=True)
    for label, count in zip(classes, shares(counts, num_validation), strict=True):
        of_class = np.flatnonzero(split.labels == label)
        is_validation[of_class[np.argsort(ranks[of_class], kind="stable")[:count]]] = True
    return split.select(~is_validation), split.select(is_validation)


def shares(counts: Int[np.ndarray, " k"], total: int) -> Int[np.ndarray, " k"]:
    """Divides `total` among classes of `counts` images in proportion, remainders to the largest.

    As far as that goes each class with two images or more gets one, and none loses its last.
    """
    most = counts - 1 if total <= (counts - 1).sum() else counts
    least = np.minimum(1, most) if total >= np.minimum(1, most).sum() else np.zeros_like(counts)
    exact = total * counts / counts.sum()
    parts = np.clip(np.floor(exact).astype(counts.dtype), least, most)
    while parts.sum() < total:
        parts[np.where(parts < most, exact - parts, -np.inf).argmax()] += 1
    while parts.sum() > total:
        parts[np.where(parts > least, parts - exact, -np.inf).argmax()] -= 1
    return parts


def lacking(validation: Split, spec: Spec) -> str:
    """A line on the classes that have no validation image, "" where all have one."""
    missing = np.setdiff1d(np.arange(spec.num_classes), validation.labels).tolist()
    if not missing:
        return ""
    names = listed([spec.class_names[k] if spec.class_names else str(k) for k in missing])
    return (
        f"validation: {len(validation.labels)} images, none of {len(missing)} of {spec.num_classes} classes: {names}; "
        "the best step rests on the others: raise config.dataset.num_validation, or add images of these classes"
    )


def random_ranks(count: int, seed: int) -> np.ndarray:
    """Numbers by which to choose at random, the same for ever for a seed."""
    # NumPy keeps the raw output of a bit generator for ever, but not the order that its shuffles make of it.
    return np.random.PCG64(seed).random_raw(count)


def fingerprint(dataset: Dataset, validation: Split | None = None) -> Fingerprint:
    """What tells a data set from others, ready for JSON; equal for equal data on every machine.

    It is of all images, and of those that were set aside to validate, where the data set has no such split of its own.
    """
    found = dataset.digest or {name: hashes(split) for name, split in dataset.splits.items()}
    return found | ({"validation": hashes(validation)} if validation is not None and not dataset.validation else {})


def chunks(images: Any) -> Iterator[np.ndarray]:
    """The images, some at a time, as contiguous arrays."""
    at_once = max(1, 2**22 // int(np.prod(images.shape[1:])))
    for start in range(0, len(images), at_once):
        yield np.ascontiguousarray(images[start : start + at_once])


def hashes(split: Split) -> dict:
    """The entry of a split in a fingerprint."""
    found = hashlib.blake2b(digest_size=16)
    for some in chunks(split.images):
        found.update(some.data)
    return {"shape": list(split.images.shape), "pictures": found.hexdigest(), "labels": hash_labels(split.labels)}


def hash_labels(labels: np.ndarray) -> str:
    """The hash of labels in a fingerprint, 32 hexadecimal digits."""
    return hashlib.blake2b(np.ascontiguousarray(labels, "<i4").data, digest_size=16).hexdigest()


def differences(there: Mapping[str, dict], here: Mapping[str, dict]) -> str:
    """In what two data sets differ, in words, "" if in nothing; a split that one lacks is not compared."""
    found = []
    for split, before in there.items():
        now = here.get(split, before)
        if now["shape"] != before["shape"]:
            counts = [f"{n:,} images of {'x'.join(map(str, shape))}" for n, *shape in (before["shape"], now["shape"])]
            found.append(f"{split} has {counts[0]} there, {counts[1]} here")
        elif names := [name for name in ("pictures", "labels") if now[name] != before[name]]:
            found.append(f"{split} has other {' and '.join(names)} here".replace("pictures", "images"))
    return ", ".join(found)
