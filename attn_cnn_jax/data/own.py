"""The user's own images, before any is decoded: a folder of class folders, or a .npz file of arrays.

A folder is DIR/CLASS/IMAGE, or DIR/train/CLASS/IMAGE with DIR/test, DIR/validation beside it. Without a test split a
part of the training images of every class becomes one, chosen by a hash of the image's name: an image that is added
moves at most one other of its class.
"""

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

SPLITS = ("train", "validation", "test")
# How people name the folders of splits, in small letters without digits, signs and words such as "set" and "images".
SPLIT_NAMES = {
    "train": ("train", "training", "trn"),
    "validation": ("val", "valid", "validate", "validating", "validation", "eval", "evaluation", "dev", "development"),
    "test": ("test", "tests", "testing", "tst"),
}
MOST_CLASSES = 100_000
LAYOUT = "DIR/CLASS/image.png, or DIR/train/CLASS/image.png with DIR/test beside train"


class Entry(NamedTuple):
    """One image: how messages name it, where it is found, and its class number."""

    name: str
    key: Any
    label: int


class Collection(NamedTuple):
    """Images by split, in an order of their own that does not depend on how they are stored.

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
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def split_note(fraction: float) -> str:
    """Returns in words how a test split was chosen."""
    return f"{100 * fraction:g}% of each class are the test split"


def split_off(
    entries: list[Entry], ranks: Sequence, names: tuple[str, ...], where: str, fraction: float
) -> tuple[list[Entry], list[Entry]]:
    """Returns (train, test), both in their old order.

    Args:
      entries: images of all classes.
      ranks: one per entry, all different; of each class the images of lowest rank are for the test.
      names: of the classes.
      where: the images are, for messages.
      fraction: part of each class that is for the test, 0 to 1; but at least one image, and not all.
    """
    by_class: dict[int, list] = {label: [] for label in range(len(names))}
    for n, (entry, rank) in enumerate(zip(entries, ranks, strict=True)):
        by_class[entry.label].append((rank, n))
    test = set()
    for label, ranked in by_class.items():
        if len(ranked) < 2:
            raise UserError(
                f"{where} has {'one image' if ranked else 'no image'} of the class {names[label]!r}: "
                "without a test split every class needs two, one to train and one to test"
            )
        count = min(max(1, round(fraction * len(ranked))), len(ranked) - 1)
        test |= {n for _, n in sorted(ranked)[:count]}
    train = [entry for n, entry in enumerate(entries) if n not in test]
    return train, [entry for n, entry in enumerate(entries) if n in test]


def checked_names(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Returns class names in Unicode's composed form (NFC), in which names that look alike are equal.

    Raises:
      UserError: unless there are at least two, all different, printable and without outer blanks.
    """
    names = tuple(unicodedata.normalize("NFC", name) for name in names)
    if len(names) < 2:
        found = f"one class, {names[0]!r}" if names else "no class"
        raise UserError(f"{where} has {found}: a classifier needs at least two")
    if len(names) > MOST_CLASSES:
        raise UserError(f"{where} has {len(names):,} classes: allowed are {MOST_CLASSES:,}")
    for name in names:
        if not name or name != name.strip() or not name.isprintable():
            raise UserError(
                f"{where}: the class name {name!a} begins or ends with a blank, is empty or cannot be printed; "
                "rename it"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{where} names two classes {twice!r}: rename one")
    return names


# A folder of class folders


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
    if not splits:
        classes = class_folders(inside)
        names = checked_names(sorted(classes), str(path))
        found = {"train": entries_of(classes, names, ignored)}
    else:
        names, found = (), {}
        for split, folder in splits.items():
            classes = class_folders(folders_in(folder, ignored))
            names = names or checked_names(sorted(classes), str(folder))
            check_same_classes(folder, classes, names)
            found[split] = entries_of(classes, names, ignored)
    if "test" not in found:
        ranks = [rank(path, entry) for entry in found["train"]]
        found["train"], found["test"] = split_off(found["train"], ranks, names, str(path), source.test_fraction)
        notes.append(f"{split_note(source.test_fraction)}, chosen by the names of the images")
    images = [os.path.basename(entry.name) for entries in found.values() for entry in entries]
    if dotted := [name for name in (*names, *images) if name.startswith(".")]:
        notes.append(f"names that begin with a dot are read like others: {listed(dotted)}")
    return Collection(
        names,
        found,
        header=lambda entry: read_header(entry.key, source.image_size),
        read=lambda entry, channels: read_picture(entry.key, channels, size=source.image_size),
        notes=tuple(notes),
        ignored=tuple(ignored),
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
        if is_folder(entry):
            if entry.name.startswith(".") and not any(map(is_image, listing(entry.path))):
                ignored.append(entry.path)
            else:
                folders[entry.name] = Path(entry.path)
        elif is_image(entry):
            raise UserError(f"{printable(entry.path)} lies in no class folder: lay the images out as {LAYOUT}")
        else:
            ignored.append(entry.path)
    if not folders:
        raise UserError(f"{path} holds no folders: lay the images out as {LAYOUT}")
    return folders


def split_named(name: str) -> str | None:
    """Returns the split that a folder's name stands for, such as "train" for `Training_Set`; None for other names."""
    letters = re.sub(r"[\W\d_]", "", name.lower())
    letters = re.sub(r"(data|image|picture|img|sample|split|set|folder)s?", "", letters) or letters
    return next((split for split, names in SPLIT_NAMES.items() if letters in names), None)


def split_folders(path: Path, inside: dict[str, Path]) -> tuple[dict[str, Path], list[str]]:
    """Returns which folders are splits, {} where all are classes, and lines on what was read into a name.

    A folder with a split's name that holds images itself, and no folders, beside others that are no splits, is a class.

    Raises:
      UserError: the folders are neither classes nor splits.
    """
    if len(inside) == 1:
        ((name, only),) = inside.items()
        within = [entry.name for entry in listing(only) if is_folder(entry)]
        if not split_named(name) and within:
            raise UserError(f"{path} holds one folder, {name}, with {len(within)} folders in it: give {only} itself")
    named: dict[str, list[str]] = {}
    for name in inside:
        if split := split_named(name):
            named.setdefault(split, []).append(name)
    others = sorted(set(inside) - {name for names in named.values() for name in names})
    if not named:
        return {}, []
    flat = {n for names in named.values() for n in names if not any(map(is_folder, listing(inside[n])))}
    if others and flat == {name for names in named.values() for name in names}:
        if set(named) == {"train"} and len(flat) == 1:
            (name,) = flat
            return {}, [f"{name} is taken for a class: it lies beside other classes and holds images itself"]
        name = next(iter(sorted(flat)))
        raise UserError(
            f"{path / name}: is it a class or a split? A class of that name beside others has to be renamed, such as "
            f"{name}_class; a split holds class folders, {split_named(name)}/{others[0]}/image.png"
        )
    if others:
        raise UserError(
            f"{path / others[0]}: beside the splits {', '.join(sorted(set(inside) - set(others)))} lies what is no "
            f"split; move it away, or give the folder that holds only classes or splits"
        )
    if twice := next((names for names in named.values() if len(names) > 1), None):
        raise UserError(f"{path} has {' and '.join(twice)}, which are the same split: move one away, or join them")
    if "train" not in named:
        raise UserError(f"{path} has no folder train beside {', '.join(inside)}: lay the images out as {LAYOUT}")
    return {split: inside[named[split][0]] for split in SPLITS if split in named}, []


def class_folders(folders: dict[str, Path]) -> dict[str, list[Path]]:
    """Returns the folders of each class: names that differ only in how Unicode composes letters are one class."""
    found: dict[str, list[Path]] = {}
    for name, folder in folders.items():
        found.setdefault(unicodedata.normalize("NFC", name), []).append(folder)
    return found


def check_same_classes(path: Path, found: Iterable[str], names: tuple[str, ...]) -> None:
    """Raises UserError unless a split has the classes of the training split."""
    strange, missing = sorted(set(found) - set(names)), sorted(set(names) - set(found))
    if strange:
        alike = [f" ({name!a}, not {strange[0]!a})" for name in missing if name.casefold() == strange[0].casefold()]
        raise UserError(
            f"{printable(path / strange[0])} is a class that train lacks{''.join(alike[:1])}: add it there, or rename "
            "or remove it here"
        )
    if missing:
        raise UserError(
            f"{path} lacks the class {missing[0]!r} of train, {len(missing)} of {len(names)} in all: "
            "every split needs every class"
        )


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
                inner, folder = printable(entry.path), printable(os.path.dirname(entry.path))
                advice = f"lay the images out as {LAYOUT}"
                if not split_named(entry.name):
                    advice = f"a class folder holds images; where the classes are the folders in {folder}, give that"
                raise UserError(f"{inner} is a folder in a class folder: {advice}")
            elif suffix in (*OTHER_SUFFIXES, *UNREAD_SUFFIXES):
                raise UserError(
                    f"{printable(entry.path)}: PNG, JPEG and WebP are read, {suffix} is not; convert it or move it away"
                )
            else:
                ignored.append(entry.path)
        if len(found) == before:
            where = classes[name][0]
            raise UserError(f"{where} holds no images: add some ({', '.join(SUFFIXES)}), or remove the folder")
    for name, _, place in found:
        if not name.isprintable():
            raise UserError(f"{printable(place)} has a name that cannot be printed: rename it")
    return [Entry(place, place, label) for _, label, place in sorted(found)]


def stamp(path: Path) -> str | None:
    """Returns a hash of the names, sizes and times of all files below a folder, or of a file; None where it is gone."""
    if not path.exists():
        return None
    digest = hashlib.blake2b(digest_size=16)
    files = [str(path)] if path.is_file() else []
    for folder, folders, names in os.walk(path):
        # A class may be a link to a folder; deeper ones are no layout that is accepted.
        links = [os.path.join(folder, name) for name in folders if os.path.islink(os.path.join(folder, name))]
        files += [os.path.join(link, name) for link in links if os.path.isdir(link) for name in os.listdir(link)]
        files += [os.path.join(folder, name) for name in names]
    for file in sorted(files):
        try:
            status = os.stat(file)
            facts = (status.st_size, status.st_mtime_ns)
        except OSError:
            facts = None
        digest.update(repr((os.path.relpath(file, path), facts)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def rank(path: Path, entry: Entry) -> bytes:
    """Returns a hash of where an image lies below a folder."""
    return hashlib.blake2b(f"0/{os.path.relpath(entry.key, path)}".encode(), digest_size=16).digest()


def printable(path: str | Path) -> str:
    """Returns a path as a terminal can show it."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


# A .npz file

PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}
KEYS = ("class_names", *(f"{prefix}{kind}" for prefix in PREFIXES.values() for kind in ("images", "labels")))


def collect_npz(path: Path, source: Source, scratch: Path) -> Collection:
    """Returns the images of a .npz file; see `collect_folder`.

    Args:
      path: the file; it holds `images` and `labels`, also `class_names`, `test_images`, `test_labels`, ...
      source: what is to be made of it.
      scratch: an empty folder, where the arrays are unpacked: they need not fit into memory.
    """
    arrays = unpacked(path, scratch)
    names = npz_names(path, arrays)
    channels = arrays["images"].shape[3]
    splits: dict[str, list[Entry]] = {}
    for split, prefix in PREFIXES.items():
        name = f"{prefix}images"
        if name not in arrays:
            continue
        if arrays[name].shape[3] != channels:
            raise UserError(f"{path}: {name} have other channels than images")
        labels = arrays[f"{prefix}labels"]
        if labels.max() >= len(names):
            raise UserError(f"{path}: {prefix}labels has {labels.max()}, and there are {len(names)} classes from 0")
        if missing := sorted(set(range(len(names))) - set(np.unique(labels).tolist())):
            raise UserError(f"{path}: no image of {name} is of the class {missing[0]}, {names[missing[0]]!r}")
        splits[split] = [Entry(f"{path}: {name}[{n}]", (name, n), int(label)) for n, label in enumerate(labels)]
    notes = ()
    if "test" not in splits:
        notes = (f"{split_note(source.test_fraction)}, chosen at random, always the same",)
        ranks = random_ranks(len(splits["train"]), 0).tolist()
        splits["train"], splits["test"] = split_off(splits["train"], ranks, names, str(path), source.test_fraction)

    def read(entry: Entry, channels: int) -> Image.Image:
        name, n = entry.key
        pixels = np.asarray(arrays[name][n])
        return Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels)

    return Collection(names, splits, lambda entry: arrays[entry.key[0]].shape[1:], read, notes)


def unpacked(path: Path, scratch: Path) -> dict[str, Any]:
    """Returns the arrays of a .npz file as memory maps, images as `(n, H, W, C)`; UserError, naming what is wrong."""
    try:
        with zipfile.ZipFile(path) as file:
            held = {Path(each.filename).stem: each for each in file.infolist() if each.filename.endswith(".npy")}
            wanted = {key: held[key] for key in KEYS if key in held}
            size, room = sum(each.file_size for each in wanted.values()), shutil.disk_usage(scratch).free
            if size > room:
                raise UserError(
                    f"{path}: its arrays take {size / 1e9:,.1f} GB once they are unpacked, and {scratch.parent.parent} "
                    f"has room for {room / 1e9:,.1f} GB\nmake room, or choose another folder by config.dataset.data_dir"
                )
            for key, member in wanted.items():
                with file.open(member) as packed, open(scratch / f"{key}.npy", "wb") as plain:
                    shutil.copyfileobj(packed, plain, 2**20)
            found = ", ".join(held)
        arrays: dict[str, Any] = {key: np.load(scratch / f"{key}.npy", mmap_mode="r") for key in wanted}
    except FileNotFoundError:
        raise UserError(f"config.dataset.path: there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"config.dataset.path: {path} is a folder; for images in folders set name=folder") from None
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"{path} is no .npz file of plain arrays as numpy.savez writes it: {shortened(error)}"
        ) from error
    for prefix in PREFIXES.values():
        images, labels = f"{prefix}images", f"{prefix}labels"
        if (images in arrays) != (labels in arrays) or (not prefix and images not in arrays):
            raise UserError(f"{path} needs both {images} and {labels}; it holds {found or 'nothing'}")
        if images in arrays:
            arrays[images] = checked_images(f"{path}: {images}", arrays[images])
            check_labels(f"{path}: {labels}", arrays[labels], len(arrays[images]))
    return arrays


def checked_images(name: str, images: np.ndarray) -> np.ndarray:
    """Returns images as `(n, H, W, C)`; UserError unless they are uint8 with one or three channels."""
    allowed = "allowed is uint8, (n, H, W), (n, H, W, 1) or (n, H, W, 3)"
    if images.dtype != np.uint8:
        raise UserError(f"{name} is {images.dtype} {images.shape}: {allowed}; scale to 0 .. 255 and convert")
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or images.shape[3] not in (1, 3) or not images.size:
        raise UserError(f"{name} is {images.dtype} {images.shape}: {allowed}")
    return images


def check_labels(name: str, labels: np.ndarray, count: int) -> None:
    """Raises UserError unless labels are one integer from 0 per image."""
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise UserError(f"{name} is {labels.dtype} {labels.shape}: allowed is one integer per image, ({count},)")
    if labels.min() < 0:
        raise UserError(f"{name} has {labels.min()}: class numbers are counted from 0")


def npz_names(path: Path, arrays: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the classes, their numbers where the file has none; UserError if they are no names."""
    if "class_names" not in arrays:
        largest = int(arrays["labels"].max())
        if largest >= MOST_CLASSES:
            raise UserError(f"{path}: labels has {largest}: allowed are {MOST_CLASSES:,} classes, counted from 0")
        return checked_names(map(str, range(largest + 1)), str(path))
    given = arrays["class_names"]
    if given.ndim != 1 or given.dtype.kind != "U" or given.nbytes > 2**30:
        raise UserError(f"{path}: class_names is {given.dtype} {given.shape}: allowed is one text per class")
    return checked_names(given[: MOST_CLASSES + 1].tolist(), str(path))
