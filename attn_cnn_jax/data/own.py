"""The user's own images, before any is decoded: a folder of class folders, or a .npz file of arrays.

A folder is DIR/CLASS/IMAGE, or DIR/train/CLASS/IMAGE with DIR/test, DIR/validation beside it. Without a test split a
part of the training images of every class becomes one, chosen by a hash of the image's name: an image that is added
moves at most one other of its class.
"""

import contextlib
import glob
import hashlib
import os
import re
import shutil
import unicodedata
import zipfile
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
    if not path.is_dir():
        found = f"{path} is a file; unpack it, and give the folder" if path.exists() else f"there is no folder {path}"
        raise UserError(f"config.dataset.path: {found}")
    ignored: list[Path] = []
    inside = folders_in(path, ignored)
    splits, notes = split_folders(path, inside)
    names, found = (), {}
    for split, folder in (splits or {"train": path}).items():
        # Names that differ only in how Unicode composes letters are one class.
        classes: dict[str, list[Path]] = {}
        for each in folders_in(folder, ignored) if splits else inside:
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
        ignored=[str(each) for each in ignored],
    )


def listing(path: Path) -> list[Path]:
    """Returns what is in a folder by name, without what systems leave there."""
    return sorted((each for each in path.iterdir() if not is_left_behind(each.name)), key=lambda each: each.name)


def is_image(path: Path) -> bool:
    """Whether a file is named as an image that is read."""
    return path.suffix.lower() in SUFFIXES


def folders_in(path: Path, ignored: list[Path]) -> list[Path]:
    """Returns the folders in a folder; adds files of other kinds, and hidden folders without images, to `ignored`;
    UserError where images lie beside the folders, or there are none.
    """
    folders = []
    for each in listing(path):
        if each.is_symlink() and not each.exists():
            raise UserError(f"{printable(each)} is a link that leads nowhere: remove it")
        if not each.is_dir() and is_image(each):
            raise UserError(f"{printable(each)} lies in no class folder: {LAYOUT}")
        is_other = not each.is_dir() or (each.name.startswith(".") and not any(map(is_image, listing(each))))
        (ignored if is_other else folders).append(each)
    if not folders:
        raise UserError(f"{path} holds no folders: {LAYOUT}")
    return folders


def split_named(name: str) -> str | None:
    """Returns the split that a folder's name stands for, such as "train" for `Training_Set`; None for other names."""
    letters = re.sub(r"[\W\d_]", "", name.lower())
    letters = re.sub(r"(data|image|picture|img|sample|split|set|folder)s?", "", letters) or letters
    return next((split for split, names in SPLIT_NAMES.items() if letters in names), None)


def split_folders(path: Path, inside: list[Path]) -> tuple[dict[str, Path], list[str]]:
    """Returns which folders are splits, {} where all are classes, and notes.

    A folder with the name of the training split that holds images itself, beside others, is a class.

    Raises:
      UserError: the folders are neither classes nor splits.
    """
    named = {folder: split for folder in inside if (split := split_named(folder.name))}
    names, others = [folder.name for folder in named], [folder for folder in inside if folder not in named]
    folders_within = sum(each.is_dir() for each in listing(next(iter(named), inside[0])))
    if not named:
        if len(inside) == 1 and folders_within:
            only = inside[0]
            raise UserError(f"{path} holds one folder, {only.name}, with {folders_within} folders in it: give {only}")
        return {}, []
    if others and [*named.values()] == ["train"] and not folders_within:
        return {}, [f"{names[0]} is taken for a class: it lies beside other classes"]
    if others:
        raise UserError(
            f"{path} has {listed(names)}, which may be splits, beside {others[0]}, which is none\n"
            f"rename what is a class, such as {names[0]}_class; move away what is no split"
        )
    if len(set(named.values())) < len(named):
        raise UserError(f"{path} has {' and '.join(names)}, of which two are the same split: join them")
    if "train" not in named.values():
        raise UserError(f"{path} has no folder train beside {', '.join(names)}: {LAYOUT}")
    found = {split: folder for folder, split in named.items()}
    return {split: found[split] for split in SPLITS if split in found}, []


def entries_of(classes: dict[str, list[Path]], names: tuple[str, ...], ignored: list[Path]) -> list[Entry]:
    """Returns the images of a split, ordered by file name, then class; adds files of other kinds to `ignored`."""
    found = []
    for label, name in enumerate(names):
        before = len(found)
        for each in (each for folder in classes[name] for each in listing(folder)):
            suffix, place = each.suffix.lower(), printable(each)
            if is_image(each):  # what is a folder or no image is found when it is read
                found.append((each.name, label, str(each)))
            elif each.is_dir():
                raise UserError(
                    f"{place} is a folder in a class folder: {LAYOUT}; "
                    f"where the classes are the folders in {printable(each.parent)}, give that"
                )
            elif suffix in (*OTHER_SUFFIXES, *UNREAD_SUFFIXES):
                raise UserError(f"{place}: PNG, JPEG and WebP are read, {suffix} is not; convert it or move it away")
            else:
                ignored.append(each)
        if len(found) == before:
            raise UserError(f"{classes[name][0]} holds no images: add some ({', '.join(SUFFIXES)}), or remove it")
    if bad := [place for name, _, place in found if not name.isprintable()]:
        raise UserError(f"{printable(bad[0])} has a name that cannot be printed: rename it")
    return [Entry(place, place, label) for _, label, place in sorted(found)]


def stamp(path: Path) -> str | None:
    """Returns a hash of the names, sizes and times of a file, or of what is in a data set's folder; None where it is
    gone.
    """
    if not path.exists():
        return None
    digest = hashlib.blake2b(digest_size=16)
    levels = ("*", "*/*", "*/*/*") if path.is_dir() else ()  # no deeper: SPLIT/CLASS/IMAGE
    files = [file for level in levels for file in glob.iglob(level, root_dir=path, include_hidden=True)]
    for file in sorted(files) or [""]:
        with contextlib.suppress(OSError):  # a link that leads nowhere
            status = os.stat(path / file)
            digest.update(repr((file, status.st_size, status.st_mtime_ns)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def printable(path: str | Path) -> str:
    """Returns a path as a terminal can show it."""
    return str(path) if str(path).isprintable() else ascii(str(path))


PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}  # of the arrays of a .npz file


def collect_npz(path: Path, source: Source, scratch: Path) -> Collection:
    """Returns the images of a .npz file; see `collect_folder`.

    Args:
      path: the file; it holds `images` and `labels`, also `class_names`, `test_images`, `test_labels`, ...
      source: what is to be made of it.
      scratch: an empty folder, where the arrays are unpacked: they need not fit into memory.
    """
    arrays = unpacked(path, scratch)
    images: dict[str, np.ndarray] = {}
    splits: dict[str, list[Entry]] = {}
    names = ()
    for split, prefix in PREFIXES.items():
        pixels, labels = (arrays.get(f"{prefix}{kind}") for kind in ("images", "labels"))
        if prefix and pixels is None and labels is None:
            continue
        if pixels is None or labels is None:
            held = ", ".join(arrays) or "nothing"
            raise UserError(f"{path} needs both {prefix}images and {prefix}labels; it holds {held}")
        images[split] = checked_images(f"{path}: {prefix}images", pixels, labels, f"{path}: {prefix}labels")
        names = names or npz_names(path, labels, arrays.get("class_names"))
        if images[split].shape[3] != images["train"].shape[3]:
            raise UserError(f"{path}: {prefix}images have other channels than images")
        numbers = np.unique(labels).tolist()
        if numbers[-1] >= len(names):
            raise UserError(f"{path}: {prefix}labels has {numbers[-1]}, and there are {len(names)} classes from 0")
        if missing := sorted(set(range(len(names))) - set(numbers)):
            of = f"of the class {missing[0]}, {names[missing[0]]!r}"
            raise UserError(f"{path}: no image of {prefix}images is {of}")
        splits[split] = [
            Entry(f"{path}: {prefix}images[{n}]", (split, n), label) for n, label in enumerate(labels.tolist())
        ]
    notes = split_off(splits, names, str(path), source.test_fraction)

    def read(entry: Entry, channels: int) -> Image.Image:
        split, n = entry.key
        return Image.fromarray(images[split][n].squeeze(2) if channels == 1 else images[split][n])

    return Collection(names, splits, lambda entry: images[entry.key[0]].shape[1:], read, notes)


def unpacked(path: Path, scratch: Path) -> dict[str, Any]:
    """Returns the arrays of a .npz file by name, as memory maps where they are needed; UserError if it is none."""
    needed = {"class_names", *(f"{prefix}{kind}" for prefix in PREFIXES.values() for kind in ("images", "labels"))}
    try:
        with zipfile.ZipFile(path) as file:
            held: dict[str, Any] = {
                Path(each.filename).stem: each for each in file.infolist() if each.filename.endswith(".npy")
            }
            wanted = sorted(needed & set(held))
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
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise many types on damaged files
        what = "is no .npz file of plain arrays as numpy.savez writes it"
        raise UserError(f"{path} {what}: {shortened(error)}") from error


def checked_images(name: str, images: np.ndarray, labels: np.ndarray, of_labels: str) -> np.ndarray:
    """Returns images as `(n, H, W, C)`.

    Raises:
      UserError: unless they are uint8 with one or three channels, and labels one integer from 0 per image.
    """
    found = images[..., None] if images.ndim == 3 else images
    if found.dtype != np.uint8 or found.ndim != 4 or found.shape[3] not in (1, 3) or not found.size:
        allowed = "allowed is uint8 from 0 to 255, (n, H, W), (n, H, W, 1) or (n, H, W, 3)"
        raise UserError(f"{name} is {images.dtype} {images.shape}: {allowed}")
    if labels.shape != (len(found),) or labels.dtype.kind not in "iu":
        allowed = f"allowed is one integer per image, ({len(found)},)"
        raise UserError(f"{of_labels} is {labels.dtype} {labels.shape}: {allowed}")
    if wrong := [number for number in (labels.min(), labels.max()) if not 0 <= number < MOST_CLASSES]:
        raise UserError(f"{of_labels} has {wrong[0]}: allowed are 0 to {MOST_CLASSES - 1}")
    return found


def npz_names(path: Path, labels: np.ndarray, given: np.ndarray | None) -> tuple[str, ...]:
    """Returns the names of the classes, their numbers where the file has none; UserError if they are no names."""
    if given is None:
        return checked_names(map(str, range(int(labels.max()) + 1)), str(path))
    if given.ndim != 1 or given.dtype.kind != "U" or given.nbytes > 2**30:
        raise UserError(f"{path}: class_names is {given.dtype} {given.shape}: allowed is one text per class")
    return checked_names(given[: MOST_CLASSES + 1].tolist(), str(path))
