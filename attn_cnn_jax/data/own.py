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
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from attn_cnn_jax.data.image_files import (
    OTHER_SUFFIXES,
    SUFFIXES,
    UNREAD_SUFFIXES,
    as_image,
    is_left_behind,
    open_image,
)
from attn_cnn_jax.data.labels import class_numbers
from attn_cnn_jax.data.sets import Source, random_ranks
from attn_cnn_jax.errors import UserError, listed, shortened

# How people name the folders of splits, in small letters without digits, signs and words such as "set" and "images".
SPLIT_NAMES = {
    "train": ("train", "training", "trn"),
    "validation": ("val", "valid", "validate", "validating", "validation", "eval", "evaluation", "dev", "development"),
    "test": ("test", "tests", "testing", "tst"),
}
SPLITS = tuple(SPLIT_NAMES)
LAYOUT = "lay the images out as DIR/CLASS/image.png, or DIR/train/CLASS/image.png with DIR/test beside train"


class Entry(NamedTuple):
    """One image."""

    name: str  # by which messages call it
    key: Any  # where it is found
    label: int


class Collection(NamedTuple):
    """Images by split, in an order that does not depend on how they are stored."""

    class_names: tuple[str, ...]
    splits: dict[str, list[Entry]]  # `train` first
    read: Callable[[Entry, int], Image.Image]  # in mode "L" or "RGB", by number of channels, 0 for its own; Unreadable
    notes: Sequence[str] = ()  # lines on how it was understood
    ignored: Sequence[str] = ()  # names of files that are no images
    ranks: Sequence = ()  # of training images, by which the test split is chosen; at random where there are none


def with_test_split(collection: Collection, source: Source) -> Collection:
    """Checks the class names; moves a part of each class from `train` to `test` unless there is a test split.

    It moves the images of lowest rank, at least one and not all; both parts keep their order.
    """
    names, splits = checked_names(collection.class_names, source.words), collection.splits
    if "test" in splits:
        return collection._replace(class_names=names)
    train, by_class, test = splits["train"], [[] for _ in names], set()
    ranks = collection.ranks or random_ranks(len(train), 0).tolist()
    for n in sorted(range(len(train)), key=ranks.__getitem__):
        by_class[train[n].label].append(n)
    for name, ranked in zip(names, by_class, strict=True):
        if len(ranked) < 2:
            raise UserError(
                f"{source.words} has {'one image' if ranked else 'no image'} of the class {name!r}: "
                "without a test split every class needs two, one to train and one to test"
            )
        count = min(max(1, round(source.test_fraction * len(ranked))), len(ranked) - 1)
        test.update(ranked[:count])
    kept = [entry for n, entry in enumerate(train) if n not in test]
    parts = {"train": kept, "test": [train[n] for n in sorted(test)]}
    chosen_by = "by the names of the images" if collection.ranks else "at random, always the same"
    note = f"{100 * source.test_fraction:g}% of each class are the test split, chosen {chosen_by}"
    return collection._replace(class_names=names, splits=splits | parts, notes=[*collection.notes, note])


def checked_names(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Class names in Unicode's composed form (NFC), in which names that look alike are equal.

    UserError unless there are at least two, all different, printable and without outer blanks.
    """
    names = tuple(unicodedata.normalize("NFC", name) for name in names)
    if len(names) < 2:
        raise UserError(f"{where} has {f'one class, {names[0]!r}' if names else 'no class'}: at least two are needed")
    if bad := [name for name in names if not name or name != name.strip() or not name.isprintable()]:
        wrong = "begins or ends with a blank, is empty or cannot be printed"
        raise UserError(f"{where}: the class name {bad[0]!a} {wrong}; rename it")
    if len(set(names)) < len(names):
        raise UserError(f"{where} names two classes {next(n for n in names if names.count(n) > 1)!r}: rename one")
    return names


def collect_folder(path: Path, source: Source) -> Collection:
    """The images below a folder, of which none is opened; UserError where they are not laid out as above."""
    if not path.is_dir():
        found = f"{path} is a file; unpack it, and give the folder" if path.exists() else f"there is no folder {path}"
        raise UserError(f"config.dataset.path: {found}")
    ignored: list[Path] = []
    inside = folders_in(path, ignored)
    folders, notes = split_folders(path, inside)
    names, splits = (), {}
    for split, folder in (folders or {"train": path}).items():
        # Names that differ only in how Unicode composes letters are one class.
        classes: dict[str, list[Path]] = {}
        for each in folders_in(folder, ignored) if folders else inside:
            classes.setdefault(unicodedata.normalize("NFC", each.name), []).append(each)
        names = names or tuple(sorted(classes))
        if different := sorted(set(classes) ^ set(names)):
            raise UserError(
                f"{folder} has other classes than train: {listed([ascii(name) for name in different])} "
                "only in one of both; every split needs every class"
            )
        images = [images_in(classes[name], ignored) for name in names]
        found = sorted((image.name, label, str(image)) for label, each in enumerate(images) for image in each)
        splits[split] = [Entry(place, place, label) for _, label, place in found]
    places = [f"0/{os.path.relpath(entry.key, path)}" for entry in splits["train"]]
    ranks = [hashlib.blake2b(place.encode(errors="surrogateescape"), digest_size=16).digest() for place in places]

    def read(entry: Entry, channels: int) -> Image.Image:
        return open_image(entry.key, channels, size=source.image_size, value_range=source.value_range)

    return Collection(names, splits, read, notes, sorted(map(str, ignored)), ranks)


def contents(path: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The folders, images and other files in a folder, without what systems leave there."""
    folders, images, others = [], [], []
    for each in sorted(path.iterdir(), key=lambda each: each.name):
        if not is_left_behind(each.name):
            is_image = each.suffix.lower() in SUFFIXES and each.is_file()
            (folders if each.is_dir() else images if is_image else others).append(each)
    if gone := [each for each in others if not each.exists()]:
        raise UserError(f"{gone[0]} is a link that leads nowhere: remove it")
    return folders, images, others


def folders_in(path: Path, ignored: list[Path]) -> list[Path]:
    """The folders in a folder, beside which there must be no images; hidden ones without images are ignored."""
    folders, images, others = contents(path)
    hidden = [each for each in folders if each.name.startswith(".") and not contents(each)[1]]
    ignored += others + hidden
    folders = [each for each in folders if each not in hidden]
    if images or not folders:
        raise UserError(f"{f'{images[0]} lies in no class folder' if images else f'{path} holds no folders'}: {LAYOUT}")
    return folders


def images_in(folders: list[Path], ignored: list[Path]) -> list[Path]:
    """The images of a class; UserError for what must not be passed over, such as images of other formats."""
    found = []
    for folder in folders:
        inside, images, others = contents(folder)
        if inside:
            advice = f"{LAYOUT}; where the classes are the folders in {folder}, give that"
            raise UserError(f"{inside[0]} is a folder in a class folder: {advice}")
        for each in others:
            if (suffix := each.suffix.lower()) in (*OTHER_SUFFIXES, *UNREAD_SUFFIXES):
                raise UserError(f"{each}: PNG, JPEG and WebP are read, {suffix} is not; convert it or move it away")
        found += images
        ignored += others
    if not found:
        raise UserError(f"{folders[0]} holds no images: add some ({', '.join(SUFFIXES)}), or remove it")
    return found


def split_named(name: str) -> str | None:
    """The split that a folder's name stands for, such as "train" for `Training_Set`; None for other names."""
    letters = re.sub(r"[\W\d_]", "", name.lower())
    letters = re.sub(r"(data|image|picture|img|sample|split|set|folder)s?", "", letters) or letters
    return next((split for split, names in SPLIT_NAMES.items() if letters in names), None)


def split_folders(path: Path, inside: list[Path]) -> tuple[dict[str, Path], list[str]]:
    """Which folders are splits, {} where all are classes, and notes; UserError where they are neither.

    A folder with the name of the training split that holds images itself, beside others, is a class.
    """
    named = [(split, folder) for folder in inside if (split := split_named(folder.name))]
    splits, others = dict(named), [folder for folder in inside if not split_named(folder.name)]
    within = len(contents(named[0][1] if named else inside[0])[0])
    if not named and len(inside) == 1 and within:
        only = inside[0]
        raise UserError(f"{path} holds one folder, {only.name}, with {within} folders in it: give {only}")
    if not named:
        return {}, []
    if others and [*splits] == ["train"] and not within:
        return {}, [f"{splits['train'].name} is taken for a class: it lies beside other classes"]
    if others or len(splits) < len(named) or "train" not in splits:
        beside = f" beside {listed([str(folder) for folder in others])}" if others else ""
        raise UserError(
            f"{path} has {listed([folder.name for _, folder in named])}, which may be splits{beside}\n"
            "needed is one train, and at most one test and one validation; rename what is a class, such as "
            f"{named[0][1].name}_class, and move away what is no split"
        )
    return {split: splits[split] for split in SPLITS if split in splits}, []


def stamp(path: Path) -> str | None:
    """A hash of names, sizes and times of a file, or of what is in a data set's folder; None where it is gone."""
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


PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}  # of the arrays of a .npz file


def collect_npz(path: Path, scratch: Path) -> Collection:
    """The images of a .npz file: `images` and `labels`, also `class_names`, `test_images`, `test_labels`, ...

    The arrays are unpacked into the empty folder `scratch`: they need not fit into memory.
    """
    arrays, names, images, splits = unpacked(path, scratch), (), {}, {}
    if (given := arrays.get("class_names")) is not None and (given.ndim != 1 or given.dtype.kind != "U"):
        raise UserError(f"{path}: class_names is {given.dtype} {given.shape}: allowed is one text per class")
    for split, prefix in PREFIXES.items():
        pixels, labels = arrays.get(f"{prefix}images"), arrays.get(f"{prefix}labels")
        if pixels is None and labels is None and split != "train":
            continue
        if pixels is None or labels is None:
            held = ", ".join(arrays) or "nothing"
            raise UserError(f"{path} needs both {prefix}images and {prefix}labels; it holds {held}")
        images[split] = found = pixels[..., None] if pixels.ndim == 3 else pixels
        if found.dtype != np.uint8 or found.ndim != 4 or found.shape[3] not in (1, 3) or not found.size:
            allowed = "allowed is uint8 from 0 to 255, (n, H, W), (n, H, W, 1) or (n, H, W, 3)"
            raise UserError(f"{path}: {prefix}images is {pixels.dtype} {pixels.shape}: {allowed}")
        if found.shape[3] != images["train"].shape[3]:
            raise UserError(f"{path}: {prefix}images have other channels than images")
        is_one_hot = labels.ndim == 2 and labels.shape[1] > 1
        count = labels.shape[1] if is_one_hot else len(np.unique(labels))
        names = names or tuple(map(str, range(count) if given is None else given))
        labels = class_numbers(labels, len(found), len(names), f"{path}: {prefix}labels")
        if missing := sorted({*range(len(names))} - {*labels.tolist()}):
            of = f"of the class {missing[0]}, {names[missing[0]]!r}"
            raise UserError(f"{path}: no image of {prefix}images is {of}")
        splits[split] = [Entry(f"{path}: {prefix}images[{n}]", (split, n), k) for n, k in enumerate(labels.tolist())]
    return Collection(names, splits, lambda entry, _: as_image(images[entry.key[0]][entry.key[1]]))


def unpacked(path: Path, scratch: Path) -> dict[str, Any]:
    """The arrays of a .npz file by name, as memory maps where they are needed; UserError if it is none."""
    needed = {"class_names", *(f"{prefix}{kind}" for prefix in PREFIXES.values() for kind in ("images", "labels"))}
    if not path.is_file():
        a_folder = f"{path} is a folder; for images in folders set name=folder"
        raise UserError(f"config.dataset.path: {a_folder if path.is_dir() else f'there is no file {path}'}")
    try:
        with zipfile.ZipFile(path) as file:
            held: dict[str, Any] = {each.filename.removesuffix(".npy"): each for each in file.infolist()}
            wanted = sorted(needed & set(held))
            for key in wanted:
                held[key] = np.load(file.extract(held[key], scratch), mmap_mode="r")
        return held
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise many types on damaged files
        what = "is no .npz file of plain arrays as numpy.savez writes it"
        raise UserError(f"{path} {what}: {shortened(error)}") from error
