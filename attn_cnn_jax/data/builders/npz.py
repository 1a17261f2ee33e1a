"""A .npz file with `images` and `labels`, also `class_names`, `test_images`, `test_labels`, `validation_...`.

Without `test_images` a part of the pictures of every class becomes the test split, chosen by a seed.
"""

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attn_cnn_jax.data.builders.collection import (
    MOST_CLASSES,
    Collection,
    Entry,
    check_class_names,
    random_ranks,
    split_note,
    split_off,
)
from attn_cnn_jax.errors import UserError, shortened

KEYS = ("images", "labels", "class_names", "test_images", "test_labels", "validation_images", "validation_labels")
PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}


def collect(path: Path, test_fraction: float, split_seed: int) -> Collection:
    """Returns the pictures of a file; see `folder.collect` for the arguments.

    Raises:
      UserError: naming the file and the array, where it is not as above.
    """
    arrays = read_arrays(path)
    names = class_names(path, arrays)
    channels = arrays["images"].shape[3]
    splits: dict[str, list[Entry]] = {}
    for split, prefix in PREFIXES.items():
        if f"{prefix}images" not in arrays:
            continue
        if arrays[f"{prefix}images"].shape[3] != channels:
            raise UserError(f"{path}: {prefix}images have other channels than images")
        labels = arrays[f"{prefix}labels"]
        if labels.max() >= len(names):
            raise UserError(f"{path}: {prefix}labels has {labels.max()}, and there are {len(names)} classes from 0")
        if missing := sorted(set(range(len(names))) - set(labels.tolist())):
            raise UserError(f"{path}: no picture of {prefix}images is of the class {missing[0]}, {names[missing[0]]!r}")
        name = f"{prefix}images"
        splits[split] = [Entry(f"{path}: {name}[{n}]", (name, n), int(label)) for n, label in enumerate(labels)]
    note = ""
    if "test" not in splits:
        note = split_note(test_fraction, split_seed)
        ranks = random_ranks(len(splits["train"]), split_seed)
        splits["train"], splits["test"] = split_off(splits["train"], ranks, names, str(path), test_fraction)

    def read(entry: Entry, channels: int) -> Image.Image:
        name, n = entry.key
        return Image.fromarray(arrays[name][n].squeeze(2) if channels == 1 else arrays[name][n])

    def header(entry: Entry) -> tuple[int, int, int]:
        height, width, channels = arrays[entry.key[0]].shape[1:]
        return height, width, channels

    return Collection(names, splits, header, read, note)


def read_arrays(path: Path) -> dict[str, Any]:
    """Returns the arrays of a file, pictures as `(n, H, W, C)`; UserError, naming the array, if they are none."""
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise UserError(
                    f"{path} holds one array: numpy.savez(file, images=..., labels=...) writes what is needed"
                )
            arrays = {key: file[key] for key in KEYS if key in file.files}
            found = ", ".join(file.files)
    except FileNotFoundError:
        raise UserError(f"config.dataset.path: there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"config.dataset.path: {path} is a folder; for pictures in folders set name=folder") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, KeyError) as error:
        raise UserError(
            f"{path} is no .npz file of plain arrays as numpy.savez writes it: {shortened(error)}"
        ) from error
    for prefix in PREFIXES.values():
        images, labels = f"{prefix}images", f"{prefix}labels"
        if (images in arrays) != (labels in arrays) or (not prefix and images not in arrays):
            raise UserError(f"{path} needs both {images} and {labels}; it holds {found or 'nothing'}")
        if images in arrays:
            arrays[images] = checked_images(f"{path}: {images}", arrays[images])
            arrays[labels] = checked_labels(f"{path}: {labels}", arrays[labels], len(arrays[images]))
    return arrays


def checked_images(name: str, images: np.ndarray) -> np.ndarray:
    """Returns pictures as `(n, H, W, C)`; UserError unless they are uint8 with one or three channels."""
    allowed = "allowed is uint8, (n, H, W), (n, H, W, 1) or (n, H, W, 3)"
    if images.dtype != np.uint8:
        raise UserError(f"{name} is {images.dtype} {images.shape}: {allowed}; scale to 0 .. 255 and convert")
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or images.shape[3] not in (1, 3) or not images.size:
        raise UserError(f"{name} is {images.dtype} {images.shape}: {allowed}")
    return images


def checked_labels(name: str, labels: np.ndarray, count: int) -> np.ndarray:
    """Returns class numbers; UserError unless they are one integer from 0 per picture."""
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise UserError(f"{name} is {labels.dtype} {labels.shape}: allowed is one integer per picture, ({count},)")
    if labels.min() < 0:
        raise UserError(f"{name} has {labels.min()}: class numbers are counted from 0")
    return labels


def class_names(path: Path, arrays: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the classes, their numbers where the file has none; UserError if they are no names."""
    if "class_names" not in arrays:
        largest = int(arrays["labels"].max())
        if largest >= MOST_CLASSES:
            raise UserError(f"{path}: labels has {largest}: allowed are {MOST_CLASSES:,} classes, counted from 0")
        names = tuple(str(label) for label in range(largest + 1))
    else:
        given = arrays["class_names"]
        if given.ndim != 1 or given.dtype.kind != "U":
            raise UserError(f"{path}: class_names is {given.dtype} {given.shape}: allowed is one text per class")
        names = tuple(given.tolist())
    check_class_names(names, str(path))
    return names


def stamp(path: Path) -> str | None:
    """Returns a hash of the size and time of a file, None where there is no such file."""
    if not path.is_file():
        return None
    status = path.stat()
    return hashlib.blake2b(repr((status.st_size, status.st_mtime_ns)).encode(), digest_size=16).hexdigest()
