"""Reads the official CIFAR archives without trusting their content; nothing is unpacked to disk.

Binary layout: a record is one byte per label (CIFAR-100: coarse, then fine), then 3 x 32 x 32 bytes of pixels.
Python layout: one pickled dict per file, with byte strings of Python 2 as keys.
"""

import gzip
import hashlib
import io
import pickle
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from attn_cnn_jax.data.sets import SPECS
from attn_cnn_jax.errors import UserError, shortened

MAX_BYTES = 256 * 2**20  # unpacked; the official archives have 176 to 187 MB
MAX_MEMBERS = 100  # the official archives have at most 9
PIXELS = 3 * 32 * 32
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


class Layout(NamedTuple):
    """An official archive: its folder and SHA-256, and the files in the folder."""

    kind: str  # "binary" or "python"
    folder: str
    sha256: str
    train: list[str]
    test: list[str]
    class_names: list[str]


BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
BINARY10, PYTHON10, BINARY100, PYTHON100 = (  # SHA-256
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
)
NAMES100 = ["coarse_label_names.txt", "fine_label_names.txt"]
LAYOUTS = {
    "cifar10": (
        Layout(
            *("binary", "cifar-10-batches-bin", BINARY10),
            *([f"{batch}.bin" for batch in BATCHES], ["test_batch.bin"], ["batches.meta.txt"]),
        ),
        Layout("python", "cifar-10-batches-py", PYTHON10, BATCHES, ["test_batch"], ["batches.meta"]),
    ),
    "cifar100": (
        Layout("binary", "cifar-100-binary", BINARY100, ["train.bin"], ["test.bin"], NAMES100),
        Layout("python", "cifar-100-python", PYTHON100, ["train"], ["test"], ["meta"]),
    ),
}
# Of the labels in the order of the records: how many classes, and their keys in the python layout.
LABELS = {
    "cifar10": ((10, "labels", "label_names"),),
    "cifar100": ((20, "coarse_labels", "coarse_label_names"), (100, "fine_labels", "fine_label_names")),
}

Rows = UInt8[np.ndarray, "n bytes"]


class Archive(NamedTuple):
    """The content of an archive. For CIFAR-100 labels and class names are coarse first, then fine.

    Attributes:
      images: split -> uint8 (N, 32, 32, 3).
      labels: split -> uint8 (N, 1 or 2).
      class_names: one tuple per label.
      origin: `sha256` of the file, `official` (whether that is the official one's), `layout` ("binary" or "python").
    """

    images: dict[str, UInt8[np.ndarray, "n 32 32 3"]]
    labels: dict[str, Rows]
    class_names: tuple[tuple[str, ...], ...]
    origin: dict[str, Any]


class Fault(Exception):
    """Why an archive is refused."""


def read(path: str | Path, name: str) -> Archive:
    """Returns the content of an archive in either layout, after checking it; one with fewer images is accepted.

    Args:
      path: a .tar.gz; `~` is the home folder.
      name: `cifar10` or `cifar100`.

    Raises:
      UserError: the file cannot be read, or is refused; the message says why.
    """
    path = Path(path).expanduser()
    wanted = " or ".join(layout.folder for layout in LAYOUTS[name])
    advice = f"Give an intact .tar.gz of {name} with the folder {wanted}, as {PAGE} has it."
    if path.exists() and not path.is_file():
        raise UserError(f"Cannot read the archive {path}: it is no plain file.\n{advice}")
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        layout, files = chosen(unpacked(path), name)
        rows = {
            split: np.concatenate([rows_of(layout.kind, name, file, files[file]) for file in getattr(layout, split)])
            for split in ("train", "test")
        }
        names = class_names(name, [(file, files[file]) for file in layout.class_names], layout.kind)
        check(name, rows)
    except OSError as error:
        raise UserError(f"Cannot read the archive {path}: {error.strerror}.\n{advice}") from None
    except Fault as fault:
        raise UserError(f"{path} is refused: {fault}.\n{advice}") from fault
    kinds = len(LABELS[name])
    images = {
        split: np.ascontiguousarray(each[:, kinds:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        for split, each in rows.items()
    }
    origin = {"sha256": sha256, "official": sha256 == layout.sha256, "layout": layout.kind}
    return Archive(images, {split: each[:, :kinds] for split, each in rows.items()}, names, origin)


class Bounded:
    """A file of which at most MAX_BYTES can be read, so that a decompression bomb does not fill the memory."""

    def __init__(self, file: gzip.GzipFile):
        self.file, self.left = file, MAX_BYTES

    def read(self, size: int) -> bytes:
        data = self.file.read(min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise Fault(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
        return data


def unpacked(path: Path) -> dict[str, bytes]:
    """Returns the plain files of a .tar.gz by their path inside, after reading it to its end."""
    files = {}
    try:
        with gzip.open(path) as unzipped:
            stream: Any = Bounded(unzipped)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=2**20) as tar:
                for count, member in enumerate(tar, start=1):
                    if count > MAX_MEMBERS:
                        raise Fault(f"it has more than {MAX_MEMBERS} members")
                    if member.isdir():
                        continue
                    # A sparse file can claim any size and take no bytes of the stream.
                    if not member.isreg() or member.issparse():
                        raise Fault(f"its member {member.name[:80]!r} is no plain file")
                    if not 0 <= member.size <= MAX_BYTES:
                        raise Fault(f"its member {member.name[:80]!r} claims {member.size:,} bytes")
                    content: Any = tar.extractfile(member)
                    files[str(PurePosixPath(member.name))] = content.read()
            while stream.read(2**20):  # the checksum of gzip stands at the end
                pass
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        raise Fault(f"it is truncated, damaged or no .tar.gz ({shortened(error)})") from error
    return files


def chosen(files: dict[str, bytes], name: str) -> tuple[Layout, dict[str, bytes]]:
    """Returns the layout of an archive of `name`, and its files by their names in the folder."""
    folders = sorted({path.partition("/")[0] for path in files})
    layout = next((layout for layout in LAYOUTS[name] if layout.folder in folders), None)
    if layout is None:
        raise Fault(f"it holds {', '.join(repr(folder[:80]) for folder in folders[:3]) or 'no files'}")
    wanted = (*layout.train, *layout.test, *layout.class_names)
    if missing := [file for file in wanted if f"{layout.folder}/{file}" not in files]:
        raise Fault(f"{layout.folder}/{missing[0]} is missing")
    return layout, {file: files[f"{layout.folder}/{file}"] for file in wanted}


def rows_of(kind: str, name: str, file: str, data: bytes) -> Rows:
    """Returns the records of a file of either layout, one row each: labels, then pixels."""
    if kind == "binary":
        size = len(LABELS[name]) + PIXELS
        if not data or len(data) % size:
            raise Fault(f"{file} has {len(data):,} bytes, not a multiple of {size:,}")
        return np.frombuffer(data, np.uint8).reshape(-1, size)
    content = unpickled(file, data)
    pixels, columns = pixels_of(content.get("data")), []
    if pixels is None or pixels.shape[1:] != (PIXELS,) or not pixels.size:
        raise Fault(f"{file} has no 'data' of N x {PIXELS:,} bytes")
    for _, key, _ in LABELS[name]:
        column = content.get(key)
        if not isinstance(column, list) or len(column) != len(pixels):
            raise Fault(f"{file} has no list {key!r} of {len(pixels)} labels")
        if not all(type(label) is int and 0 <= label < 256 for label in column):
            raise Fault(f"{file} has labels that are not class numbers")
        columns.append(np.array(column, np.uint8))
    return np.column_stack([*columns, pixels])


class Pickled:
    """Stands for an array or a dtype in a pickle: NumPy's own trust their state, and a damaged one crashes Python."""

    def __init__(self, *arguments: Any):
        self.arguments, self.state = arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


def pixels_of(value: Any) -> np.ndarray | None:
    """Returns the array of bytes that was pickled, None for anything else."""
    try:
        _, shape, dtype, is_fortran, data = value.state
        data = data.encode("latin-1") if isinstance(data, str) else data
        is_bytes = dtype.arguments[0] == "u1"
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran else "C") if is_bytes else None
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        return None


class Unpickler(pickle._Unpickler):
    """Imports nothing: the names that an array of NumPy is made of give a `Pickled`.

    The one in Python: that in C reserves memory for whatever index a pickle names.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a pickle asks for; UnpicklingError for anything else than an array needs."""
        arrays = [f"numpy{core}.multiarray _reconstruct" for core in (".core", "._core")]
        if f"{module} {name}" in ("numpy ndarray", "numpy dtype", *arrays):
            return Pickled
        raise pickle.UnpicklingError(f"it asks to import {f'{module} {name}'!r}, which the layout has no need of")


def unpickled(path: str, data: bytes) -> dict[Any, Any]:
    """Returns the dict in a pickle of the python layout, texts as `str`."""
    try:
        content = Unpickler(io.BytesIO(data), encoding="latin-1").load()
    except Exception as error:  # damaged pickles raise almost any type
        raise Fault(f"{path} is no pickle of the official form: {shortened(error)}") from error
    if not isinstance(content, dict):
        raise Fault(f"{path} is no pickle of the official form: it holds no dict")
    return content


def class_names(name: str, files: list[tuple[str, bytes]], kind: str) -> tuple[tuple[str, ...], ...]:
    """Returns the class names per label; Fault where they do not fit."""
    if kind == "binary":
        found: list[Any] = [data.decode("ascii", errors="replace").split() for _, data in files]
    else:
        found = [unpickled(*files[0]).get(key) for _, _, key in LABELS[name]]
    for names, (count, _, _) in zip(found, LABELS[name], strict=True):
        good = isinstance(names, list) and all(isinstance(n, str) and n and n.isprintable() for n in names)
        if not good or len(names) != count or len(set(names)) != count:
            raise Fault(f"it has other class names than the {count} of {name}")
    return tuple(map(tuple, found))


def check(name: str, rows: dict[str, Rows]) -> None:
    """Raises a Fault for too many images and for labels out of range."""
    for split, most in (("train", SPECS[name].train_examples), ("test", SPECS[name].test_examples)):
        if len(rows[split]) > most:
            raise Fault(f"it has {len(rows[split]):,} {split} images; {name} has {most:,}")
        for column, (count, _, _) in zip(rows[split].T, LABELS[name], strict=False):
            if column.max() >= count:
                raise Fault(f"its {split} images have the label {column.max()}; {name} has 0 to {count - 1}")
