"""The user's own images, before any is decoded: a folder of class folders, or a .npz file of arrays.

A folder is DIR/CLASS/IMAGE, or DIR/train/CLASS/IMAGE with DIR/test, DIR/validation beside it. Without a test split a
part of the training images of every class becomes one, chosen by a hash of the image's name: an image that is added
moves at most one other of its class.
"""

import glob
import hashlib
import os
import re
import shutil
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from attn_cnn_jax.data.pictures import (
    OTHER_SUFFIXES,
    SUFFIXES,
    UNREAD_SUFFIXES,
    is_left_behind,
    read_header,
    read_picture,
)
from attn_cnn_jax.data.sets import Source, random_ranks
from attn_cnn_jax.errors import UserError, listed, shortened

# How people name the folders of splits, in small letters without digits, signs and words such as "set" and "images".
SPLIT_NAMES = {
    "train": ("train", "training", "trn"),
    "validation": ("val", "valid", "validate", "validating", "validation", "eval", "evaluation", "dev", "development"),
    "test": ("test", "tests", "testing", "tst"),
}
SPLITS = tuple(SPLIT_NAMES)
MOST_CLASSES = 100_000
LAYOUT = "lay the images out as DIR/CLASS/image.png, or DIR/train/CLASS/image.png with DIR/test beside train"


class Entry(NamedTuple):
    """One image: how messages name it, where it is found, and its class number."""

    name: str
    key: Any
    label: int


class Collection(NamedTuple):
    """Images by split, in an order that does not depend on how they are stored.

    Attributes:
      class_names: by label.
      splits: `train` and `test`, also `validation` where there is one.
      header: returns height, width and channels (1 or 3) of an entry; may raise Unreadable.
      read: returns an entry in mode "L" or "RGB", given the number of channels; may raise Unreadable.
      notes: lines on how it was understood, such as how the test split came about.
      ignored: names of files that are no images and were passed over.
    """

    class_names: tuple[str, ...]
    splits: dict[str, list[Entry]]
    header: Callable[[Entry], tuple[int, int, int]]
    read: Callable[[Entry, int], Image.Image]
    notes: list[str]
    ignored: Sequence[str] = ()


def split_off(
    splits: dict[str, list[Entry]], names: tuple[str, ...], where: str, fraction: float, ranks: Sequence | None = None
) -> list[str]:
    """Moves a part of each class from `train` to `test` unless there is a test split; returns a note on it.

    Args:
      splits: the images; both parts keep their order.
      names: of the classes.
      where: the images are, for messages.
      fraction: part of each class that is for the test, 0 to 1; but at least one image, and not all.
      ranks: one per image; of each class the images of lowest rank are for the test. None: at random, always the same.
    """
    if "test" in splits:
        return []
    entries, by_class = splits["train"], [[] for _ in names]
    chosen_by = "at random, always the same" if ranks is None else "by the names of the images"
    for n, rank in enumerate(random_ranks(len(entries), 0).tolist() if ranks is None else ranks):
        by_class[entries[n].label].append((rank, n))
    test = set()
    for name, ranked in zip(names, by_class, strict=True):
        if len(ranked) < 2:
            raise UserError(
                f"{where} has {'one image' if ranked else 'no image'} of the class {name!r}: "
                "without a test split every class needs two, one to train and one to test"
            )
        count = min(max(1, round(fraction * len(ranked))), len(ranked) - 1)
        test |= {n for _, n in sorted(ranked)[:count]}
    splits["train"] = [entry for n, entry in enumerate(entries) if n not in test]
    splits["test"] = [entry for n, entry in enumerate(entries) if n in test]
    return [f"{100 * fraction:g}% of each class are the test split, chosen {chosen_by}"]


def checked_names(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Returns class names in Unicode's composed form (NFC), in which names that look alike are equal.

    Raises:
      UserError: unless there are at least two, all different, printable and without outer blanks.
    """
    names = tuple(unicodedata.normalize("NFC", name) for name in names)
    if len(names) < 2:
        raise UserError(f"{where} has {f'one class, {names[0]!r}' if names else 'no class'}: at least two are needed")
    if len(names) > MOST_CLASSES:
        raise UserError(f"{where} has {len(names):,} classes: allowed are {MOST_CLASSES:,}")
    if bad := [name for name in names if not name or name != name.strip() or not name.isprintable()]:
        wrong = "begins or ends with a blank, is empty or cannot be printed"
        raise UserError(f"{where}: the class name {bad[0]!a} {wrong}; rename it")
    if len(set(names)) < len(names):
        raise UserError(f"{where} names two classes {next(n for n in names if names.count(n) > 1)!r}: rename one")
    return names


def collect_folder(path: Path, source: Source, scratch: Path) -> Collection:
    """Returns the images below a folder; none is opened.

    Args:
      path: the folder.
      source: what is to be made of it.
      scratch: not needed.

    Raises:
      UserError: naming the folder or file, where they are not laid out as above.
    """
    ignored: list[str] = []
    inside = folders_in(path, ignored)
    splits, notes = split_folders(path, inside)
    names, found = (), {}
    for split, folder in (splits or {"train": path}).items():
        # Names that differ only in how Unicode composes letters are one class.
        classes: dict[str, list[Path]] = {}
        for each in (folders_in(folder, ignored) if splits else inside).values():
            classes.setdefault(unicodedata.normalize("NFC", each.name), []).append(each)
        names = names or checked_names(sorted(classes), str(folder))
        if different := sorted(set(classes) ^ set(names)):
            raise UserError(
                f"{folder} has other classes than train: {listed([ascii(name) for name in different])} "
                "only in one of both; every split needs every class"
            )
        found[split] = entries_of(classes, names, ignored)
    places = [f"0/{os.path.relpath(entry.key, path)}" for entry in found["train"]]
    ranks = [hashlib.blake2b(place.encode(), digest_size=16).digest() for place in places]
    notes += split_off(found, names, str(path), source.test_fraction, ranks)
    images = [os.path.basename(entry.name) for entries in found.values() for entry in entries]
    if dotted := [name for name in (*names, *images) if name.startswith(".")]:
        notes.append(f"names that begin with a dot are read like others: {listed(dotted)}")
    return Collection(
        names,
        found,
        header=lambda entry: read_header(entry.key, source.image_size),
        read=lambda entry, channels: read_picture(entry.key, channels, size=source.image_size),
        notes=notes,
        ignored=ignored,
    )


def listing(path: Path | str) -> list[os.DirEntry]:
    """Returns what is in a folder, without what systems leave there; UserError where it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return sorted((each for each in entries if not is_left_behind(each.name)), key=lambda each: each.name)
    except FileNotFoundError:
        raise UserError(f"config.dataset.path: there is no folder {path}") from None
    except NotADirectoryError:
        raise UserError(f"config.dataset.path: {path} is a file; unpack it, and give the folder") from None


def is_folder(entry: os.DirEntry) -> bool:
    """Whether an entry is a folder or a link to one; UserError for a link that leads nowhere."""
    try:
        if entry.is_symlink():
            os.stat(entry.path)
        return entry.is_dir()
    except OSError as error:
        raise UserError(f"{printable(entry.path)} cannot be followed: {error.strerror}; remove the link") from error


def is_image(entry: os.DirEntry) -> bool:
    """Whether a file is named as an image that is read."""
    return entry.name.lower().endswith(SUFFIXES)


def folders_in(path: Path, ignored: list[str]) -> dict[str, Path]:
    """Returns the folders in a folder by name; adds files of other kinds, and hidden folders without images, to
    `ignored`; UserError where images lie beside the folders, or there are none.
    """
    folders = {}
    for entry in listing(path):
        if not is_folder(entry):
            if is_image(entry):
                raise UserError(f"{printable(entry.path)} lies in no class folder: {LAYOUT}")
            ignored.append(entry.path)
        elif entry.name.startswith(".") and not any(map(is_image, listing(entry.path))):
            ignored.append(entry.path)
        else:
            folders[entry.name] = Path(entry.path)
    if not folders:
        raise UserError(f"{path} holds no folders: {LAYOUT}")
    return folders


def split_named(name: str) -> str | None:
    """Returns the split that a folder's name stands for, such as "train" for `Training_Set`; None for other names."""
    letters = re.sub(r"[\W\d_]", "", name.lower())
    letters = re.sub(r"(data|image|picture|img|sample|split|set|folder)s?", "", letters) or letters
    return next((split for split, names in SPLIT_NAMES.items() if letters in names), None)


def split_folders(path: Path, inside: dict[str, Path]) -> tuple[dict[str, Path], list[str]]:
    """Returns which folders are splits, {} where all are classes, and notes.

    A folder with the name of the training split that holds images itself, beside others, is a class.

    Raises:
      UserError: the folders are neither classes nor splits.
    """

    def folders_within(name: str) -> int:
        return sum(map(is_folder, listing(inside[name])))

    first = next(iter(inside))
    named = {name: split for name in inside if (split := split_named(name))}
    others = [name for name in inside if name not in named]
    if not named:
        if len(inside) == 1 and (count := folders_within(first)):
            raise UserError(f"{path} holds one folder, {first}, with {count} folders in it: give {inside[first]}")
        return {}, []
    if others and list(named.values()) == ["train"] and not folders_within(*named):
        return {}, [f"{listed(list(named))} is taken for a class: it lies beside other classes"]
    if others:
        raise UserError(
            f"{path} has {listed(list(named))}, which may be splits, beside {path / others[0]}, which is none\n"
            f"rename what is a class, such as {next(iter(named))}_class; move away what is no split"
        )
    if len(set(named.values())) < len(named):
        raise UserError(f"{path} has {' and '.join(named)}, of which two are the same split: join them")
    if "train" not in named.values():
        raise UserError(f"{path} has no folder train beside {', '.join(inside)}: {LAYOUT}")
    found = {split: inside[name] for name, split in named.items()}
    return {split: found[split] for split in SPLITS if split in found}, []


def entries_of(classes: dict[str, list[Path]], names: tuple[str, ...], ignored: list[str]) -> list[Entry]:
    """Returns the images of a split, ordered by file name, then class; adds files of other kinds to `ignored`."""
    found = []
    for label, name in enumerate(names):
        before = len(found)
        for entry in (entry for folder in classes[name] for entry in listing(folder)):
            suffix = os.path.splitext(entry.name)[1].lower()
            if suffix in SUFFIXES:  # what is a folder or no image is found when it is read
                found.append((entry.name, label, entry.path))
            elif is_folder(entry):
                raise UserError(
                    f"{printable(entry.path)} is a folder in a class folder: {LAYOUT}; "
                    f"where the classes are the folders in {printable(os.path.dirname(entry.path))}, give that"
                )
            elif suffix in (*OTHER_SUFFIXES, *UNREAD_SUFFIXES):
                raise UserError(
                    f"{printable(entry.path)}: PNG, JPEG and WebP are read, {suffix} is not; convert it or move it away"
                )
            else:
                ignored.append(entry.path)
        if len(found) == before:
            raise UserError(f"{classes[name][0]} holds no images: add some ({', '.join(SUFFIXES)}), or remove it")
    if bad := [place for name, _, place in found if not name.isprintable()]:
        raise UserError(f"{printable(bad[0])} has a name that cannot be printed: rename it")
    return [Entry(place, place, label) for _, label, place in sorted(found)]


def stamp(path: Path) -> str | None:
    """Returns a hash of the names, sizes and times of what is in a data set's folder, or of a file; None where it is
    gone.
    """
    if not path.exists():
        return None
    digest = hashlib.blake2b(digest_size=16)
    levels = ("*", "*/*", "*/*/*") if path.is_dir() else ()  # no deeper: SPLIT/CLASS/IMAGE
    files = [file for level in levels for file in glob.iglob(level, root_dir=path, include_hidden=True)]
    for file in sorted(files) or [""]:
        try:
            status = os.stat(path / file)
            facts = (status.st_size, status.st_mtime_ns)
        except OSError:
            facts = None
        digest.update(repr((file, facts)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def printable(path: str | Path) -> str:
    """Returns a path as a terminal can show it."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}  # of the arrays of a .npz file
KEYS = ("class_names", *(f"{prefix}{kind}" for prefix in PREFIXES.values() for kind in ("images", "labels")))


def collect_npz(path: Path, source: Source, scratch: Path) -> Collection:
    """Returns the images of a .npz file; see `collect_folder`.

    Args:
      path: the file; it holds `images` and `labels`, also `class_names`, `test_images`, `test_labels`, ...
      source: what is to be made of it.
      scratch: an empty folder, where the arrays are unpacked: they need not fit into memory.
    """
    arrays = unpacked(path, scratch)
    splits: dict[str, list[Entry]] = {}
    names = ()
    for split, prefix in PREFIXES.items():
        images, labels = f"{prefix}images", f"{prefix}labels"
        if (images in arrays) != (labels in arrays) or (not prefix and images not in arrays):
            raise UserError(f"{path} needs both {images} and {labels}; it holds {', '.join(arrays) or 'nothing'}")
        if images not in arrays:
            continue
        arrays[images] = checked_images(f"{path}: {images}", arrays[images])
        check_labels(f"{path}: {labels}", arrays[labels], len(arrays[images]))
        names = names or npz_names(path, arrays)
        if arrays[images].shape[3] != arrays["images"].shape[3]:
            raise UserError(f"{path}: {images} have other channels than images")
        numbers = np.unique(arrays[labels]).tolist()
        if numbers[-1] >= len(names):
            raise UserError(f"{path}: {labels} has {numbers[-1]}, and there are {len(names)} classes from 0")
        if missing := sorted(set(range(len(names))) - set(numbers)):
            raise UserError(f"{path}: no image of {images} is of the class {missing[0]}, {names[missing[0]]!r}")
        splits[split] = [
            Entry(f"{path}: {images}[{n}]", (images, n), int(label)) for n, label in enumerate(arrays[labels])
        ]
    notes = split_off(splits, names, str(path), source.test_fraction)

    def read(entry: Entry, channels: int) -> Image.Image:
        name, n = entry.key
        pixels = np.asarray(arrays[name][n])
        return Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels)

    return Collection(names, splits, lambda entry: arrays[entry.key[0]].shape[1:], read, notes)


def unpacked(path: Path, scratch: Path) -> dict[str, Any]:
    """Returns the arrays of a .npz file as memory maps; UserError, naming what is wrong."""
    try:
        with zipfile.ZipFile(path) as file:
            held: dict[str, Any] = {
                Path(each.filename).stem: each for each in file.infolist() if each.filename.endswith(".npy")
            }
            wanted = [key for key in KEYS if key in held]
            size, room = sum(held[key].file_size for key in wanted), shutil.disk_usage(scratch).free
            if size > room:
                raise UserError(
                    f"{path}: its arrays take {size / 1e9:,.1f} GB once they are unpacked, and {scratch.parent.parent} "
                    f"has room for {room / 1e9:,.1f} GB\nmake room, or choose another folder by config.dataset.data_dir"
                )
            for key in wanted:
                with file.open(held[key]) as packed, open(scratch / f"{key}.npy", "wb") as plain:
                    shutil.copyfileobj(packed, plain, 2**20)
                held[key] = np.load(scratch / f"{key}.npy", mmap_mode="r")
        return held
    except FileNotFoundError:
        raise UserError(f"config.dataset.path: there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"config.dataset.path: {path} is a folder; for images in folders set name=folder") from None
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        what = "is no .npz file of plain arrays as numpy.savez writes it"
        raise UserError(f"{path} {what}: {shortened(error)}") from error


def checked_images(name: str, images: np.ndarray) -> np.ndarray:
    """Returns images as `(n, H, W, C)`; UserError unless they are uint8 with one or three channels."""
    found = images[..., None] if images.ndim == 3 else images
    if found.dtype != np.uint8 or found.ndim != 4 or found.shape[3] not in (1, 3) or not found.size:
        allowed = "allowed is uint8 from 0 to 255, (n, H, W), (n, H, W, 1) or (n, H, W, 3)"
        raise UserError(f"{name} is {images.dtype} {images.shape}: {allowed}")
    return found


def check_labels(name: str, labels: np.ndarray, count: int) -> None:
    """Raises UserError unless labels are one integer from 0 per image."""
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise UserError(f"{name} is {labels.dtype} {labels.shape}: allowed is one integer per image, ({count},)")
    if labels.min() < 0 or labels.max() >= MOST_CLASSES:
        number = labels.min() if labels.min() < 0 else labels.max()
        raise UserError(f"{name} has {number}: allowed are 0 to {MOST_CLASSES - 1}")


def npz_names(path: Path, arrays: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the classes, their numbers where the file has none; UserError if they are no names."""
    if "class_names" not in arrays:
        return checked_names(map(str, range(int(arrays["labels"].max()) + 1)), str(path))
    given = arrays["class_names"]
    if given.ndim != 1 or given.dtype.kind != "U" or given.nbytes > 2**30:
        raise UserError(f"{path}: class_names is {given.dtype} {given.shape}: allowed is one text per class")
    return checked_names(given[: MOST_CLASSES + 1].tolist(), str(path))
