"""Prepared data sets: a folder of arrays that are opened as memory maps.

`{train,test,validation}_images.npy` are uint8 `(n, H, W, C)`, `..._labels.npy` int32 `(n,)`; `about.json` has what else
is known: classes, mean and standard deviation, origin, hashes of the arrays. A folder is made beside its place under a
lock and moved there when it is complete: a kill at any moment leaves the old data set or the new one.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from attn_cnn_jax.data.own import Collection, Entry
from attn_cnn_jax.data.pictures import Unreadable, fit
from attn_cnn_jax.data.sets import SPECS, Dataset, Source, Spec, Split, fingerprint, hash_labels
from attn_cnn_jax.errors import UserError

LARGEST = 256  # pixels of a side that images may have without config.dataset.image_size
SKIP = "repair or remove it, or set config.dataset.skip_unreadable=True to leave out what cannot be read"
MEMORY_SHARE = 1 / 4  # that a data set may take before it is left on the disk

Say = Callable[[str], object]


def machine_memory() -> int:
    """Returns the bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_about(folder: Path) -> dict[str, Any] | None:
    """Returns what `about.json` of a prepared data set says, None where there is none that can be read."""
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        return about if about["hashes"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def read(folder: Path, name: str) -> Dataset:
    """Returns a prepared data set as memory maps; one of less than a quarter of the memory is checked by its hashes.

    Raises:
      OSError, ValueError, LookupError, TypeError: it is not there or damaged.
    """
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    shape, names = tuple(about["image_shape"]), tuple(about["class_names"])
    splits = {}
    for split, expected in about["hashes"].items():
        images = np.asarray(np.load(folder / f"{split}_images.npy", mmap_mode="r"))
        labels = np.load(folder / f"{split}_labels.npy")
        found = images.dtype, list(images.shape), images.shape[1:], hash_labels(labels), len(labels)
        if found != (np.uint8, expected["shape"], shape, expected["labels"], len(images)):
            raise ValueError(f"other {split} images or labels than were written")
        splits[split] = Split(images, labels)
    spec = SPECS.get(name) or Spec(name, shape, len(names), tuple(about["mean"]), tuple(about["std"]))
    spec = dataclasses.replace(spec, class_names=names, has_validation="validation" in splits)
    dataset = Dataset(**splits, spec=spec, digest=about["hashes"])
    is_checked = dataset.nbytes <= MEMORY_SHARE * machine_memory()
    if is_checked and fingerprint(dataset._replace(digest=None)) != dataset.digest:
        raise ValueError("other images than were written")
    return dataset


@contextlib.contextmanager
def locked(folder: Path, say: Say) -> Iterator[None]:
    """Holds the lock of a data set, after removing or putting back what a killed process left; OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"Another process is preparing {folder.name}; waiting for it.")
        lock.acquire()
    try:
        put_right(folder)
        yield
    finally:
        lock.release()


def put_right(folder: Path) -> None:
    """Removes what is half made, and brings back a data set that was about to be replaced; its lock must be held."""
    old = folder.with_name(f"{folder.name}.old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    for left in (old, folder.with_name(f"{folder.name}.new")):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Gives an empty folder that takes the place of `folder` at the end of the block; its lock must be held."""
    new = folder.with_name(f"{folder.name}.new")
    new.mkdir()
    try:
        yield new
        if folder.exists():
            folder.rename(folder.with_name(f"{folder.name}.old"))
        new.rename(folder)
    finally:
        put_right(folder)


def write(folder: Path, collection: Collection, source: Source, facts: dict[str, Any]) -> None:
    """Reads every image of a collection and writes the arrays into an empty folder.

    Args:
      folder: to write to.
      collection: what to read.
      source: where it came from, with the size of the images.
      facts: what `about.json` keeps besides.

    Raises:
      UserError: naming the file, for what cannot be read or makes no data set.
    """
    skipped: dict[str, str] = {}

    def attempt(read: Callable[[Entry], Any], entry: Entry) -> Any:
        """Returns `read(entry)`, None for what cannot be read and is to be skipped."""
        try:
            return read(entry)
        except Unreadable as error:
            if not source.skip_unreadable:
                raise Unreadable(f"{error}\n{SKIP}") from error
            skipped[entry.name] = str(error)
            return None

    shape, hashes = choose_shape(collection, source, attempt), {}
    sums = np.zeros((2, shape[2]), np.int64)  # of training values and of their squares: exact, so in any order
    for split, entries in collection.splits.items():
        labels, digest = array("i"), hashlib.blake2b(digest_size=16)
        with (folder / f"{split}_images.npy").open("wb") as file:
            write_header(file, (0, *shape))
            for entry in entries:
                image = None if entry.name in skipped else attempt(lambda e: collection.read(e, shape[2]), entry)
                if image is None:
                    continue
                pixels = np.ascontiguousarray(fit(image, shape[:2]))
                file.write(pixels.data)
                digest.update(pixels.data)
                labels.append(entry.label)
                if split == "train":
                    values = pixels.reshape(-1, shape[2]).astype(np.int64)
                    sums += np.stack([values.sum(axis=0), (values**2).sum(axis=0)])
            file.seek(0)
            write_header(file, (len(labels), *shape))  # of the same length: NumPy leaves room for the number
        numbers = np.array(labels, np.int32)
        np.save(folder / f"{split}_labels.npy", numbers)
        hashes[split] = {"shape": (len(labels), *shape), "pictures": digest.hexdigest(), "labels": hash_labels(numbers)}
        if unread := sorted({entry.label for entry in entries} - set(labels)):
            name = collection.class_names[unread[0]]
            raise UserError(f"{source.words}: no {split} image of the class {name!r} can be read")
    mean, std = moments(sums / np.prod(hashes["train"]["shape"][:3]))
    if official := SPECS.get(source.name):
        mean, std = official.mean, official.std
    about = {
        "class_names": collection.class_names,
        "image_shape": shape,
        "mean": mean,
        "std": std,
        "hashes": hashes,
        "notes": collection.notes,
        "skipped": list(skipped.values()),
        "ignored": collection.ignored,
    }
    (folder / "about.json").write_text(json.dumps(about | facts, indent=1) + "\n", encoding="utf-8")


def moments(means: np.ndarray) -> tuple[list[float], list[float]]:
    """Returns mean and standard deviation (1 where it is 0) per channel, of values in [0, 1], to four digits.

    Args: means: `(2, C)`, of values from 0 to 255 and of their squares.
    """
    std = np.round(np.sqrt(np.maximum(means[1] - means[0] ** 2, 0)) / 255, 4)
    return np.round(means[0] / 255, 4).tolist(), np.where(std > 0, std, 1.0).tolist()


def choose_shape(collection: Collection, source: Source, attempt: Callable[..., Any]) -> tuple[int, int, int]:
    """Returns (H, W, C) of the prepared images: C is 1 if all training images are grey, else 3."""
    sizes: dict[tuple[int, int], str] = {}  # an image of each
    counts: Counter = Counter()
    channels = 1
    for split, entries in collection.splits.items():
        for entry in entries:
            if (header := attempt(collection.header, entry)) is not None:
                sizes.setdefault(header[:2], entry.name)
                counts[header[:2]] += 1
                channels = max(channels, header[2] if split == "train" else 1)
    if not counts:
        raise UserError(f"{source.words}: no image can be read")
    if any(source.image_size):
        return (*source.image_size, channels)
    ((height, width), _), *others = counts.most_common()
    advice = "set config.dataset.image_size=64 or =(HEIGHT,WIDTH): all are cropped and resized to it"
    if others:
        (other, _), *_ = others
        found = f"{len(sizes)} sizes: most are {height}x{width}, {sizes[other]} is {other[0]}x{other[1]}\n{advice}"
        raise UserError(f"{source.words} has images of {found}")
    if max(height, width) > LARGEST:
        raise UserError(f"{source.words} has images of {height}x{width} pixels: {advice}")
    return height, width, channels


def write_header(file: Any, shape: tuple[int, ...]) -> None:
    """Writes the header of a .npy file of bytes."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
