"""Reads the official CIFAR archives without trusting their content; nothing is unpacked to disk.

Binary layout: a record is one byte per label (CIFAR-100: coarse, then fine), then 3 x 32 x 32 bytes of pixels.
Python layout: one pickled dict per file (see `python_layout`).
"""

import gzip
import hashlib
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.data.preparation import python_layout
from attn_cnn_jax.errors import UserError

MAX_BYTES = 256 * 2**20  # unpacked; the official archives have 176 to 187 MB
MAX_MEMBERS = 100  # the official archives have at most 9
PIXELS = 3 * 32 * 32
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
# Of the labels in the order of the records; CIFAR-100's are coarse, then fine.
NUM_CLASSES = {"cifar10": (10,), "cifar100": (20, 100)}
LABEL_KEYS = {"cifar10": ("labels",), "cifar100": ("coarse_labels", "fine_labels")}
NAME_KEYS = {"cifar10": ("label_names",), "cifar100": ("coarse_label_names", "fine_label_names")}


class Layout(NamedTuple):
    """An official archive: its data set, kind and folder, and the files in the folder."""

    name: str
    kind: str
    folder: str
    train: list[str]
    test: list[str]
    class_names: list[str]


BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
BATCHES_BIN = [f"{batch}.bin" for batch in BATCHES]
NAMES100 = ["coarse_label_names.txt", "fine_label_names.txt"]
LAYOUTS = (
    Layout("cifar10", "binary", "cifar-10-batches-bin", BATCHES_BIN, ["test_batch.bin"], ["batches.meta.txt"]),
    Layout("cifar10", "python", "cifar-10-batches-py", BATCHES, ["test_batch"], ["batches.meta"]),
    Layout("cifar100", "binary", "cifar-100-binary", ["train.bin"], ["test.bin"], NAMES100),
    Layout("cifar100", "python", "cifar-100-python", ["train"], ["test"], ["meta"]),
)
SHA256 = {
    "cifar-10-batches-bin": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-10-batches-py": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "cifar-100-binary": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    "cifar-100-python": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
}


PixelRows = UInt8[np.ndarray, "n 3072"]
Pictures = UInt8[np.ndarray, "n 32 32 3"]
LabelRows = UInt8[np.ndarray, "n kinds"]
Splits = dict[str, np.ndarray]
ClassNames = tuple[tuple[str, ...], ...]


class Archive(NamedTuple):
    """The content of an archive. For CIFAR-100 labels and class names are coarse first, then fine.

    Attributes:
      images: split -> uint8 (N, 32, 32, 3).
      labels: split -> uint8 (N, 1 or 2).
      class_names: one tuple per label.
      kind: `binary` or `python`.
      sha256: of the file.
      official: whether the SHA-256 is that of the official archive.
    """

    images: dict[str, Pictures]
    labels: dict[str, LabelRows]
    class_names: tuple[tuple[str, ...], ...]
    kind: str
    sha256: str
    official: bool


class Fault(Exception):
    """Why an archive is refused."""


def read(path: str | Path, name: str) -> Archive:
    """Returns the content of an archive in the binary or the python layout, after checking it.

    An archive with fewer pictures than the official one is accepted (a reduced copy).

    Args:
      path: a .tar.gz; `~` is the home folder.
      name: `cifar10` or `cifar100`.

    Raises:
      UserError: the file cannot be read, or is refused; the message says why.
    """
    path = Path(path).expanduser()
    wanted = " or ".join(layout.folder for layout in LAYOUTS if layout.name == name)
    advice = f"Give an intact .tar.gz of {name} with the folder {wanted}, as {PAGE} has it."
    if path.exists() and not path.is_file():
        raise UserError(f"Cannot read the archive {path}: it is no plain file.\n{advice}")
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"Cannot read the archive {path}: {error.strerror}.\n{advice}") from None
    try:
        layout, files = choose_layout(unpack(path), name)
        images, labels, class_names = (read_binary if layout.kind == "binary" else read_python)(layout, files)
        check(name, images, labels, class_names)
    except Fault as fault:
        raise UserError(f"{path} is refused: {fault}.\n{advice}") from fault
    return Archive(images, labels, class_names, layout.kind, sha256, sha256 == SHA256[layout.folder])


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


def unpack(path: Path) -> dict[str, bytes]:
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
                    content = tar.extractfile(member)
                    files[str(PurePosixPath(member.name))] = content.read() if content else b""
            while stream.read(2**20):  # the checksum of gzip stands at the end
                pass
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise Fault(f"it is truncated, damaged or no .tar.gz ({reason})") from error
    return files


def choose_layout(files: dict[str, bytes], name: str) -> tuple[Layout, dict[str, bytes]]:
    """Returns the layout of an archive of `name`, and its files by their names in the layout's folder."""
    folders = sorted({path.partition("/")[0] for path in files})
    layout = next((layout for layout in LAYOUTS if layout.name == name and layout.folder in folders), None)
    if layout is None:
        raise Fault(f"it holds {', '.join(repr(folder[:80]) for folder in folders[:3]) or 'no files'}")
    inside = {}
    for file in (*layout.train, *layout.test, *layout.class_names):
        if f"{layout.folder}/{file}" not in files:
            raise Fault(f"{layout.folder}/{file} is missing")
        inside[file] = files[f"{layout.folder}/{file}"]
    return layout, inside


def read_binary(layout: Layout, files: dict[str, bytes]) -> tuple[Splits, Splits, ClassNames]:
    """Returns pictures and labels of each split, and the class names."""
    kinds = len(NUM_CLASSES[layout.name])
    images, labels = {}, {}
    for split, names in {"train": layout.train, "test": layout.test}.items():
        for name in names:
            size = len(files[name])
            if not size or size % (kinds + PIXELS):
                raise Fault(f"{layout.folder}/{name} has {size:,} bytes, not a multiple of {kinds + PIXELS:,}")
        rows = np.frombuffer(b"".join(files[name] for name in names), np.uint8).reshape(-1, kinds + PIXELS)
        images[split], labels[split] = as_pictures(rows[:, kinds:]), rows[:, :kinds]
    texts = [files[name].decode("ascii", errors="replace") for name in layout.class_names]
    return images, labels, tuple(tuple(text.split()) for text in texts)


def read_python(layout: Layout, files: dict[str, bytes]) -> tuple[Splits, Splits, ClassNames]:
    """Returns pictures and labels of each split, and the class names."""
    contents = {}
    for name, data in files.items():
        try:
            contents[name] = python_layout.loads(data)
        except ValueError as error:
            raise Fault(f"{layout.folder}/{name} is no pickle of the official form: {error}") from error
    images, labels = {}, {}
    for split, names in {"train": layout.train, "test": layout.test}.items():
        batches = [read_batch(contents[name], LABEL_KEYS[layout.name], f"{layout.folder}/{name}") for name in names]
        images[split] = np.concatenate([as_pictures(rows) for rows, _ in batches])
        labels[split] = np.concatenate([labels for _, labels in batches])
    lists = [contents[layout.class_names[0]].get(key) for key in NAME_KEYS[layout.name]]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        raise Fault(f"{layout.folder}/{layout.class_names[0]} has no class names")
    return images, labels, tuple(map(tuple, lists))


def read_batch(content: dict[str, Any], label_keys: tuple[str, ...], file: str) -> tuple[PixelRows, LabelRows]:
    """Returns the pixels and the labels of one pickled batch; `file` names it in messages."""
    rows = content.get("data")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != PIXELS or not len(rows):
        raise Fault(f"{file} has no 'data' of N x {PIXELS:,} bytes")
    columns: list[Any] = [content.get(key) for key in label_keys]
    for key, column in zip(label_keys, columns, strict=True):
        if not isinstance(column, list) or len(column) != len(rows):
            raise Fault(f"{file} has no list {key!r} of {len(rows)} labels")
        if not all(type(label) is int and 0 <= label < 256 for label in column):
            raise Fault(f"{file} has labels that are not class numbers")
    return rows, np.array(columns, np.uint8).T


def as_pictures(rows: PixelRows) -> Pictures:
    """Returns rows of 3 x 32 x 32 bytes as pictures with the channels last."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def check(name: str, images: Splits, labels: Splits, class_names: ClassNames) -> None:
    """Raises a Fault for too many pictures, labels out of range, and class names that do not fit."""
    most = {"train": SPECS[name].train_examples, "test": SPECS[name].test_examples}
    for split, pictures in images.items():
        if len(pictures) > most[split]:
            raise Fault(f"it has {len(pictures):,} {split} pictures; {name} has {most[split]:,}")
        for column, count in zip(labels[split].T, NUM_CLASSES[name], strict=True):
            if column.max() >= count:
                raise Fault(f"its {split} pictures have the label {column.max()}; {name} has 0 to {count - 1}")
    for names, count in zip(class_names, NUM_CLASSES[name], strict=True):
        if len(names) != count or len(set(names)) != count or not all(n.isprintable() and n for n in names):
            raise Fault(f"it has {len(set(names))} different class names where {name} has {count}")
