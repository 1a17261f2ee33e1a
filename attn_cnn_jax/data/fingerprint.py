"""The fingerprint of data: whether a run continues with, or is evaluated on, the data that it began with."""

import hashlib
from collections.abc import Mapping

import numpy as np

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.data.sources import Split
from attn_cnn_jax.data.stored import AnyDataset, Stored, hash_pictures

# Per split `shape`, of its pictures, and hashes of `pictures` and `labels`.
Fingerprint = dict[str, dict]


def fingerprint(dataset: AnyDataset, validation: Split | Stored | None = None, workers: int = 0) -> Fingerprint:
    """Returns what tells a data set from others, ready for JSON.

    Equal data has equal fingerprints on every machine, however it was prepared, in memory or on the disk.

    Args:
      dataset: all of it, before a validation split is set aside.
      validation: the pictures set aside; None where there are none, or the data set has a validation split of its own.
      workers: processes that read pictures on the disk; 0 for threads.
    """
    validation = validation or dataset.validation
    splits = {"train": dataset.train, "test": dataset.test} | ({"validation": validation} if validation else {})
    return {name: part(split, workers) for name, split in splits.items()}


def part(split: Split | Stored, workers: int) -> dict:
    """Returns the entry of one split."""
    if isinstance(split, Stored):
        shape, pictures = [len(split.labels), *split.image_shape], split.digest or hash_pictures(split, workers)
    else:
        shape, pictures = list(split.images.shape), digest(np.ascontiguousarray(split.images, np.uint8))
    return {"shape": shape, "pictures": pictures, "labels": digest(np.ascontiguousarray(split.labels, "<i4"))}


def digest(array: AnyArray) -> str:
    """Returns a hash of the bytes of an array, 32 hexadecimal digits."""
    return hashlib.blake2b(np.asarray(array).data, digest_size=16).hexdigest()


def differences(there: Mapping[str, dict], here: Mapping[str, dict]) -> str:
    """Returns in what two data sets differ, in words, "" if in nothing; a split that one lacks is not compared."""
    found = []
    for split, before in there.items():
        now = here.get(split, before)
        if now["shape"] != before["shape"]:
            found.append(f"{split} has {counted(before['shape'])} there, {counted(now['shape'])} here")
        elif names := [name for name in ("pictures", "labels") if now[name] != before[name]]:
            found.append(f"{split} has other {' and '.join(names)} here")
    return ", ".join(found)


def counted(shape: list[int]) -> str:
    """Returns `1,442 pictures of 8x8x1` for a shape `(n, H, W, C)`."""
    return f"{shape[0]:,} pictures of {'x'.join(map(str, shape[1:]))}"
