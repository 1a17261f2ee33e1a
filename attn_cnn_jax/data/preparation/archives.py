"""Read the official CIFAR archives, and trust nothing in them.

Binary layout: a record is one byte a label (CIFAR-100: coarse, then fine), then 3 x 32 x 32 bytes. Python
layout: a pickled dict a file (see `python_layout`). Nothing is unpacked to disk.
"""

import gzip
import hashlib
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from attn_cnn_jax.data.preparation import python_layout
from attn_cnn_jax.errors import UserError

_MAX_BYTES = 256 * 2**20  # unpacked; the official archives have 176 to 187 MB
_MAX_MEMBERS = 100  # the official archives have at most 9
_PIXELS = 3 * 32 * 32


class _Layout(NamedTuple):
    """What an official archive looks like; `files` maps a split to its files."""

    name: str
    kind: str
    folder: str
    files: dict[str, tuple[str, ...]]
    class_names: tuple[str, ...]
    label_keys: tuple[str, ...]
    sha256: str


_CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_LAYOUTS = (
    _Layout(
        "cifar10",
        "binary",
        "cifar-10-batches-bin",
        {"train": tuple(f"{batch}.bin" for batch in _CIFAR10_BATCHES), "test": ("test_batch.bin",)},
        ("batches.meta.txt",),
        ("label",),
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    _Layout(
        "cifar10",
        "python",
        "cifar-10-batches-py",
        {"train": _CIFAR10_BATCHES, "test": ("test_batch",)},
        ("batches.meta",),
        ("labels",),
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    _Layout(
        "cifar100",
        "binary",
        "cifar-100-binary",
        {"train": ("train.bin",), "test": ("test.bin",)},
        ("coarse_label_names.txt", "fine_label_names.txt"),
        ("coarse_label", "label"),
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    _Layout(
        "cifar100",
        "python",
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        ("meta",),
        ("coarse_labels", "fine_labels"),
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
)
_NUM_CLASSES = {"cifar10": (10,), "cifar100": (20, 100)}
_MAX_EXAMPLES = {"train": 50_000, "test": 10_000}


class Archive(NamedTuple):
    """The content of an archive. For CIFAR-100 labels and class names are coarse first, then fine.

    images: split -> uint8 (N, 32, 32, 3); labels: split -> uint8 (N, 1 or 2); class_names: one tuple a label.
    kind: "binary" or "python". sha256: of the file. official: whether that is the official archive's.
    """

    images: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    class_names: tuple[tuple[str, ...], ...]
    kind: str
    sha256: str
    official: bool


class _Fault(Exception):
    """Why an archive is refused."""


class _Bounded:
    """A file of which at most `limit` bytes can be read: a bomb ends here, not in memory."""

    def __init__(self, file, limit):
        self._file, self._left = file, limit

    def read(self, size):
        data = self._file.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise _Fault(f"it unpacks to more than {_MAX_BYTES >> 20} MiB")
        return data


def read(path, name):
    """Read and check an archive of `name`, "cifar10" or "cifar100", in the binary or the python layout.

    Fewer pictures than the official archive has are accepted (a reduced copy); wrong names, sizes, labels and
    anything unsafe are not.

    Raises:
      UserError: the file cannot be read or is refused; the message says why.
    """
    path = Path(path).expanduser()
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        reason = f"Cannot read the archive {path}: {error.strerror}"
        raise UserError(f"{reason}.\nGive the path of {_wanted(name)}.") from None
    try:
        layout, files = _unpack(path)
        if layout.name != name:
            raise _Fault(f"it holds {layout.name} (folder {layout.folder})")
        if missing := sorted({*sum(layout.files.values(), ()), *layout.class_names} - files.keys()):
            raise _Fault(f"{layout.folder}/{missing[0]} is missing")
        parse = _parse_binary if layout.kind == "binary" else _parse_python
        images, labels, class_names = parse(layout, files)
        _check(name, images, labels, class_names)
    except _Fault as fault:
        raise UserError(f"{path} is refused: {fault}.\nGive {_wanted(name)}.") from fault
    return Archive(images, labels, class_names, layout.kind, sha256, sha256 == layout.sha256)


def _wanted(name):
    files = " or ".join(f"{layout.folder}/..." for layout in _LAYOUTS if layout.name == name)
    page = "https://www.cs.toronto.edu/~kriz/cifar.html"
    return f"an intact .tar.gz of {name} with {files} inside, as {page} has it"


def _unpack(path):
    """Return the layout and the bytes of its files by name, after reading the archive to its end."""
    layouts = {layout.folder: layout for layout in _LAYOUTS}
    layout, files = None, {}
    try:
        with gzip.open(path) as unzipped:
            stream = _Bounded(unzipped, _MAX_BYTES)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=2**20) as tar:
                for count, member in enumerate(tar, start=1):
                    folder, name = _checked_name(member, count)
                    if folder not in layouts or member.isdir():
                        continue
                    layout = layout or layouts[folder]
                    if layout is not layouts[folder] or name in files:
                        raise _Fault(f"it holds a second {folder if layout.folder != folder else name!r}")
                    files[name] = tar.extractfile(member).read()
            while stream.read(2**20):  # gzip checks its sum at the end of the file only
                pass
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise _Fault(f"it is truncated, damaged or no .tar.gz ({reason})") from error
    if layout is None:
        raise _Fault("it has none of the official folders inside")
    return layout, files


def _checked_name(member, count):
    """Return a member's folder and file name, after refusing whatever an official archive would not have."""
    shown = repr(member.name[:80])
    path = PurePosixPath(member.name)
    if count > _MAX_MEMBERS:
        raise _Fault(f"it has more than {_MAX_MEMBERS} members")
    if path.is_absolute() or ".." in path.parts:
        raise _Fault(f"its member {shown} leads outside the archive")
    if member.islnk() or member.issym():
        raise _Fault(f"its member {shown} is a link")
    if not member.isdir() and (not member.isreg() or member.issparse()):
        raise _Fault(f"its member {shown} is no plain file")
    if not 0 <= member.size <= _MAX_BYTES:
        raise _Fault(f"its member {shown} claims {member.size:,} bytes")
    return (path.parts[0], "/".join(path.parts[1:])) if path.parts else ("", "")


def _parse_binary(layout, files):
    width = len(layout.label_keys)
    images, labels = {}, {}
    for split, names in layout.files.items():
        for name in names:
            if not files[name] or len(files[name]) % (width + _PIXELS):
                size = f"{len(files[name]):,} bytes, not a multiple of {width + _PIXELS:,}"
                raise _Fault(f"{layout.folder}/{name} has {size}")
        rows = np.frombuffer(b"".join(files[name] for name in names), np.uint8).reshape(-1, width + _PIXELS)
        images[split], labels[split] = _pictures(rows[:, width:]), rows[:, :width]
    try:
        texts = [files[name].decode("ascii") for name in layout.class_names]
    except UnicodeDecodeError:
        raise _Fault("its class names are not text") from None
    return images, labels, tuple(tuple(text.split()) for text in texts)


def _parse_python(layout, files):
    images, labels = {}, {}
    for split, names in layout.files.items():
        parts = [_python_file(layout, name, files[name]) for name in names]
        images[split] = np.concatenate([_pictures(rows) for rows, _ in parts])
        labels[split] = np.concatenate([labels for _, labels in parts])
    meta = _load_pickle(layout, layout.class_names[0], files[layout.class_names[0]])
    keys = ["label_names"] if layout.name == "cifar10" else ["coarse_label_names", "fine_label_names"]
    class_names = [meta.get(key) for key in keys]
    if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in class_names):
        raise _Fault(f"{layout.folder}/{layout.class_names[0]} lacks the lists {' and '.join(keys)}")
    return images, labels, tuple(map(tuple, class_names))


def _python_file(layout, name, data):
    """Return a pickled batch as uint8 rows (N, 3072) and labels (N, 1 or 2)."""
    content = _load_pickle(layout, name, data)
    rows = content.get("data")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != _PIXELS or not len(rows):
        raise _Fault(f"{layout.folder}/{name} has no 'data' of N x {_PIXELS:,} bytes")
    columns = [content.get(key) for key in layout.label_keys]
    for key, column in zip(layout.label_keys, columns, strict=True):
        if not isinstance(column, list) or len(column) != len(rows):
            raise _Fault(f"{layout.folder}/{name} has no list {key!r} of {len(rows)} labels")
        if not all(type(label) is int and 0 <= label < 256 for label in column):
            raise _Fault(f"{layout.folder}/{name} has labels that are not class numbers")
    return rows, np.array(columns, np.uint8).T


def _load_pickle(layout, name, data):
    try:
        return python_layout.loads(data)
    except ValueError as error:
        raise _Fault(f"{layout.folder}/{name} is no pickle of the official form: {error}") from error


def _pictures(rows):
    """uint8 (N, 3072), channels first -> (N, 32, 32, 3)."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _check(name, images, labels, class_names):
    """Refuse labels out of range, too many pictures, and class names that do not fit."""
    num_classes = _NUM_CLASSES[name]
    for split, pictures in images.items():
        if len(pictures) > _MAX_EXAMPLES[split]:
            raise _Fault(f"it has {len(pictures):,} {split} pictures; {name} has {_MAX_EXAMPLES[split]:,}")
        for column, limit in zip(labels[split].T, num_classes, strict=True):
            if column.max() >= limit:
                allowed = f"{name} has 0 to {limit - 1}"
                raise _Fault(f"its {split} pictures have the label {column.max()}; {allowed}")
    for names, limit in zip(class_names, num_classes, strict=True):
        if len(names) != limit or len(set(names)) != limit or not all(n.isprintable() and n for n in names):
            raise _Fault(f"it has {len(set(names))} different class names where {name} has {limit}")
