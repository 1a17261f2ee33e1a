"""Reads the official CIFAR archives without trusting their content; nothing is unpacked to disk.

Binary layout: a record is one byte per label (CIFAR-100: coarse, then fine), then 3 x 32 x 32 bytes of pixels.
Python layout: one pickled dict per file, with byte strings of Python 2 as keys.
"""

import gzip
import hashlib
import io
import pickle
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from attn_cnn_jax.data.own import checked_names
from attn_cnn_jax.errors import UserError, shortened

MAX_BYTES = 256 * 2**20  # unpacked; the official archives have 176 to 187 MB
PIXELS = 3 * 32 * 32
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


# By the folder that an official archive has: its SHA-256, and its files of training and test images and of class names.
SHA256 = {
    "cifar-10-batches-bin": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-10-batches-py": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "cifar-100-binary": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    "cifar-100-python": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
}
FILES = {
    "cifar-10-batches-bin": ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], ["batches.meta.txt"]),
    "cifar-10-batches-py": ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], ["batches.meta"]),
    "cifar-100-binary": (["train.bin"], ["test.bin"], ["coarse_label_names.txt", "fine_label_names.txt"]),
    "cifar-100-python": (["train"], ["test"], ["meta"]),
}
# Of labels and of class names in the python layout, in the order that the binary layout has them.
KEYS = {
    "cifar10": (("labels", "label_names"),),
    "cifar100": (("coarse_labels", "coarse_label_names"), ("fine_labels", "fine_label_names")),
}


class Archive(NamedTuple):
    """The content of an archive. For CIFAR-100 labels and class names are coarse first, then fine."""

    images: dict[str, UInt8[np.ndarray, "n 32 32 3"]]  # by split
    labels: dict[str, UInt8[np.ndarray, "n labels"]]  # by split, one or two columns
    class_names: list[tuple[str, ...]]  # per column of labels
    sha256: str  # of the file
    verdict: str  # whether that is the official archive's, in words


def read(path: str | Path, name: str) -> Archive:
    """The content of a .tar.gz of `cifar10` or `cifar100` in either layout, also with fewer images; UserError."""
    path, keys = Path(path).expanduser(), KEYS[name]
    allowed = [folder for folder in FILES if folder.startswith(f"cifar-{name.removeprefix('cifar')}-")]
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no plain file")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        files, images, labels = unpacked(path), {}, {}
        found = sorted({file.partition("/")[0] for file in files})
        folder = next((folder for folder in allowed if folder in found), None)
        if folder is None:
            raise ValueError(f"it holds {', '.join(repr(each[:80]) for each in found[:3]) or 'no files'}")
        train, test, texts = ([f"{folder}/{file}" for file in each] for each in FILES[folder])
        if missing := {*train, *test, *texts} - set(files):
            raise ValueError(f"{min(missing)} is missing")
        for split, wanted in (("train", train), ("test", test)):
            rows = np.concatenate([rows_of(file, files[file], keys) for file in wanted])
            pixels = rows[:, len(keys) :].reshape(-1, 3, 32, 32)
            images[split], labels[split] = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), rows[:, : len(keys)]
        if is_binary := test[0].endswith(".bin"):
            names = [files[text].decode("ascii", errors="replace").split() for text in texts]
        else:
            names = [unpickled(files[texts[0]])[key] for _, key in keys]
        names = [checked_names(each, "its list of classes") for each in names]
    except Exception as error:  # readers of gzip, tar and pickle raise almost any type on damaged files
        raise UserError(
            f"The archive {path} is refused: {getattr(error, 'strerror', None) or shortened(error)}.\n"
            f"Give an intact .tar.gz of {name} with the folder {' or '.join(allowed)}, as {PAGE} has it."
        ) from error
    verdict = f"{'the' if sha256 == SHA256[folder] else 'not the'} official archive"
    return Archive(images, labels, names, sha256, f"{verdict} ({'binary' if is_binary else 'python'} layout)")


def unpacked(path: Path) -> dict[str, bytes]:
    """The plain files of a .tar.gz by their path inside."""
    with gzip.open(path) as file:
        data = file.read(MAX_BYTES + 1)  # to its end, where the checksum is
    if len(data) > MAX_BYTES:
        raise ValueError(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as tar:
        for member in tar:
            # A sparse file can claim any size and take no bytes of the archive.
            is_plain = member.isdir() or (member.isreg() and not member.issparse())
            if not is_plain or not 0 <= member.size <= len(data):
                raise ValueError(f"its member {member.name[:80]!r} is no plain file of the size that it claims")
            if content := tar.extractfile(member):
                files[str(PurePosixPath(member.name))] = content.read()
    return files


def rows_of(file: str, data: bytes, keys: tuple) -> UInt8[np.ndarray, "n bytes"]:
    """The records of a file, of each its labels, then its pixels."""
    size = len(keys) + PIXELS
    try:
        if file.endswith(".bin"):
            return np.frombuffer(data, np.uint8).reshape(-1, size)
        content = unpickled(data)
        rows = np.column_stack([*(np.array(content[key], np.uint8) for key, _ in keys), content["data"].array()])
        return rows.reshape(len(rows), size)
    except Exception as error:
        said = f"{type(error).__name__}: {shortened(error)}"
        raise ValueError(f"{file} is not of the official form ({said})") from error


NAMES = ("numpy ndarray", "numpy dtype", *(f"numpy.{x}core.multiarray _reconstruct" for x in ("", "_")))


class Pickled:
    """Stands for an array or a dtype in a pickle: NumPy's own trust their state, and a damaged one crashes Python."""

    state: Any

    def __init__(self, *arguments: Any):
        self.arguments, self.state = arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        """The array of bytes that was pickled; an error for anything else."""
        _, shape, dtype, is_fortran, data = self.state
        if dtype.arguments[0] != "u1":
            raise ValueError("its data are no bytes")
        data = data.encode("latin-1") if isinstance(data, str) else data
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran else "C")


class Unpickler(pickle._Unpickler):
    """Imports nothing: the names that an array of NumPy is made of give a `Pickled`.

    The one in Python: that in C reserves memory for whatever index a pickle names.
    """

    def find_class(self, module: str, name: str) -> Any:
        if f"{module} {name}" in NAMES:
            return Pickled
        raise pickle.UnpicklingError(f"it asks to import {f'{module} {name}'!r}, which the layout has no need of")


def unpickled(data: bytes) -> dict[Any, Any]:
    """The dict in a pickle of the python layout, texts as `str`."""
    return Unpickler(io.BytesIO(data), encoding="latin-1").load()
