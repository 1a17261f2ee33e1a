"""Loads data sets: finds the prepared one, or prepares it from where it comes from.

A prepared data set is a folder of arrays that are opened as memory maps: `{train,test,validation}_images.npy`, uint8
`(n, H, W, C)`, and `..._labels.npy`, int32 `(n,)`. `about.json` has what else is known: classes, mean and standard
deviation, hashes of the arrays, what was left out. A folder is made beside its place under a lock, and takes that place
when it is complete, which is when it has `about.json`.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from PIL import Image

from attn_cnn_jax.data import audit, own
from attn_cnn_jax.data.digits import digits
from attn_cnn_jax.data.image_files import Unreadable, fit
from attn_cnn_jax.data.own import Collection, Entry
from attn_cnn_jax.data.sets import (
    OWN,
    SPECS,
    WITH_SCIKIT_LEARN,
    Dataset,
    Source,
    Spec,
    Split,
    chunks,
    fingerprint,
    hash_labels,
    hashes,
    is_own,
)
from attn_cnn_jax.errors import UserError, command_line, listed, shortened
from attn_cnn_jax.output import say

LARGEST = 256  # pixels of a side that images may have without config.dataset.image_size
SKIP = "repair or remove it, or set config.dataset.skip_unreadable=True to leave out what cannot be read"
HEADER_BYTES = 128  # of a .npy file, whatever the number of images
MEMORY_SHARE = 1 / 4  # that a data set may take before it is left on the disk


def machine_memory() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Where data sets are: the folder given, or $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser().absolute()


def own_path(source: Source) -> Path:
    """Where the user's own images are; "." for other sources."""
    return Path(source.path).expanduser().absolute() if source.path else Path()


def slug(source: Source) -> str:
    """A name for files; the lock of a data set and of its records, for any size of images."""
    return re.sub(r"\W+", "_", f"{source.name}_{own_path(source).stem}".lower(), flags=re.ASCII).strip("_")[:30]


def folder_of(source: Source, data_dir: str | Path | None = None) -> Path:
    """Where a data set is prepared: `prepared/NAME` in the data folder."""
    choices = [source.name, str(own_path(source)), *source.image_size, float(source.test_fraction)]
    choices += ["skip_unreadable"] * source.skip_unreadable
    choices += source.value_range if source.value_range != Source.value_range else ()
    tag = hashlib.blake2b(repr(choices).encode(errors="surrogateescape"), digest_size=5).hexdigest()
    return data_folder(data_dir) / "prepared" / (source.name if source.name in SPECS else f"{slug(source)}_{tag}")


def load(source: Source | str, data_dir: str | Path | None = None) -> Dataset:
    """A data set, prepared first where that is needed; see `prepare`."""
    source = Source(source) if isinstance(source, str) else source
    if source.name not in WITH_SCIKIT_LEARN:
        prepare(source, data_dir)
    return read(source, data_dir)


def read(source: Source, data_dir: str | Path | None = None) -> Dataset:
    """A prepared data set as memory maps; writes nothing. UserError where it is not there, or damaged.

    Its labels are checked by their hash, images that take less than a quarter of the memory, too.
    """
    if source.name in WITH_SCIKIT_LEARN:
        return digits(source.name)
    folder = folder_of(source, data_dir)
    again = command_line("prepare", *source.options(), *(["--data-dir", str(data_dir)] if data_dir else []))
    if not folder.exists():
        raise UserError(
            f"The data set {source.words} is not in {folder.parent.parent}.\nPrepare it by `{again}`, or name the "
            "folder where it is by --data-dir=DIR or the variable TFDS_DATA_DIR."
        )
    try:
        about, splits = json.loads((folder / "about.json").read_text(encoding="utf-8")), {}
        shape, names = tuple(about["image_shape"]), tuple(about["class_names"])
        for split, expected in about["hashes"].items():
            images = np.asarray(np.load(folder / f"{split}_images.npy", mmap_mode="r"))
            labels = np.load(folder / f"{split}_labels.npy")
            found = images.dtype, list(images.shape), images.shape[1:], hash_labels(labels), len(labels)
            if found != (np.uint8, expected["shape"], shape, expected["labels"], len(images)):
                raise ValueError(f"other {split} images or labels than were written")
            splits[split] = Split(images, labels)
        of_data = Spec(source.name, shape, len(names), tuple(about["mean"]), tuple(about["std"]))
        spec = SPECS.get(source.name, of_data)
        spec = dataclasses.replace(spec, class_names=names, has_validation="validation" in splits)
        dataset = Dataset(**splits, spec=spec, digest=about["hashes"], notes=tuple(about["notes"]))
        is_checked = dataset.nbytes <= MEMORY_SHARE * machine_memory()
        if is_checked and fingerprint(dataset._replace(digest=None)) != dataset.digest:
            raise ValueError("other images than were written")
        return dataset
    except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
        what = f"The prepared data set {folder} is damaged: {shortened(error)}"
        raise UserError(f"{what}.\nPrepare it again: `{again} --replace`.") from error


def prepare(source: Source, data_dir: str | Path | None = None, *, archive: Any = None, replace: bool = False) -> bool:
    """Prepares a data set unless it is there, made from what there is now; returns whether it did.

    CIFAR comes from a `cifar.Archive` if one is given, else from what tfds has there, or downloads. With `replace` it
    is made anew. It says what it does. UserError where it cannot be read or written.
    """
    folder = folder_of(source, data_dir)

    def made_from() -> str | None:
        return own.stamp(own_path(source)) if source.name in OWN else archive and archive.sha256

    def is_there() -> bool:
        try:
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            # None: nothing was named, or the files are gone and the copy is all there is.
            return not replace and made_from() in (about["made_from"], None)
        except (OSError, ValueError, LookupError, TypeError):
            return False

    try:
        if is_there():
            return False
        with making(folder, slug(source)) as new:
            if is_there():  # made by the process that held the lock
                return False
            before = made_from()
            with tempfile.TemporaryDirectory(dir=new) as scratch:
                collection = collect(source, data_folder(data_dir), Path(scratch), archive, replace)
                collection = own.with_test_split(collection, source)
                say(f"Writing {folder}")
                write(new, collection, source, before)
        return True
    except OSError as error:
        raise UserError(
            f"Cannot write the data set {source.words} to {folder}: {error.strerror or error}.\n"
            "Make room there, or choose another folder by config.dataset.data_dir, --data-dir or TFDS_DATA_DIR."
        ) from error


@contextlib.contextmanager
def making(folder: Path, name: str) -> Iterator[Path]:
    """Holds a lock and gives a new folder, which takes the place of `folder` once it has an `about.json`; OSError."""
    new = folder.with_name(f"{folder.name}.new")

    def finish() -> None:
        """Also after a kill: the new folder is complete, or removed; the old one is gone only after that."""
        if (new / "about.json").exists():
            (folder / "about.json").unlink(missing_ok=True)  # what is removed in part is not taken for a data set
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
        shutil.rmtree(new, ignore_errors=True)

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"Another process is preparing {name}; waiting for it.")
        lock.acquire()
    try:
        finish()
        new.mkdir()
        yield new
    finally:
        finish()
        lock.release()


def collect(source: Source, data_folder: Path, scratch: Path, archive: Any, replace: bool) -> Collection:
    """The images of a data set, before they are read; see `prepare`."""
    if source.name == "folder":
        return own.collect_folder(own_path(source), source)
    if source.name == "npz":
        return own.collect_npz(own_path(source), scratch)
    from attn_cnn_jax.data import tfds  # takes long to import

    return tfds.collect(source, data_folder, archive, replace)


def write(folder: Path, collection: Collection, source: Source, made_from: str | None) -> None:
    """Reads every image of a collection, once, and writes the arrays into an empty folder.

    They have one channel if all training images are grey, else three. `about.json` keeps `made_from`, which tells the
    files that they come from. UserError, naming the file, for what cannot be read or makes no data set.
    """
    size, channels, skipped, splits = source.image_size, 0, [], {}
    kinds, seen = {}, {}
    for split, entries in collection.splits.items():  # training first
        labels, path, are_grey = array("i"), folder / f"{split}_images.npy", True
        with path.open("wb") as file:
            file.seek(HEADER_BYTES)
            for entry in entries:
                try:
                    image = collection.read(entry, channels)
                except Unreadable as error:
                    if not source.skip_unreadable:
                        raise Unreadable(f"{error}\n{SKIP}") from error
                    skipped.append(str(error))
                    continue
                size = size if any(source.image_size) else checked_size(image, size, entry, source)
                are_grey = are_grey and image.mode == "L"
                pixels = np.ascontiguousarray(fit(image if channels else image.convert("RGB"), size))
                file.write(pixels.data)
                labels.append(entry.label)
                if is_own(source.name):
                    audit.add(kinds, image)
                    digest = audit.digest(pixels if pixels.shape[2] == 3 else pixels.repeat(3, axis=2))
                    seen.setdefault(digest, []).append((split, entry.label, entry.name))
            file.seek(0)
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(labels), *size, channels or 3)}
            np.lib.format.write_array_header_1_0(file, header)
        if unread := sorted({entry.label for entry in entries} - set(labels)):
            name = collection.class_names[unread[0]]
            raise UserError(f"{source.words}: no {split} image of the class {name!r} can be read")
        channels = channels or (1 if are_grey else 3)
        if (images := np.load(path, mmap_mode="r")).shape[3] > channels:
            np.save(folder / "grey.npy", images[..., :1])
            images = np.load((folder / "grey.npy").replace(path), mmap_mode="r")
        splits[split] = Split(images, np.array(labels, np.int32))
        np.save(folder / f"{split}_labels.npy", splits[split].labels)

    official, counts = SPECS.get(source.name), {name: len(split.labels) for name, split in splits.items()}
    mean, std = (official.mean, official.std) if official else moments(splits["train"].images)
    numbers = [", ".join(f"{number:.4f}" for number in each) for each in (mean, std)]
    notes = [
        f"{', '.join(f'{count:,} {split}' for split, count in counts.items())} images of "
        f"{len(collection.class_names)} classes, {'x'.join(map(str, (*size, channels)))}, "
        f"mean {numbers[0]}, standard deviation {numbers[1]}",
        *collection.notes,
    ]
    if official and counts != {"train": official.train_examples, "test": official.test_examples}:
        all_of = f"{official.train_examples:,} training and {official.test_examples:,} test images"
        notes.append(f"a reduced copy: the official data set has {all_of}")
    if is_own(source.name):
        notes += audit.lines_on_levels(kinds, source.value_range) + audit.lines_on_identical(seen)
    if skipped:
        notes.append(f"skipped {len(skipped):,} that cannot be read: {listed(skipped)}")
    if collection.ignored:
        notes.append(f"passed over {len(collection.ignored):,} that are no images: {listed(collection.ignored)}")
    about = {
        "class_names": collection.class_names,
        "image_shape": (*size, channels),
        "mean": mean,
        "std": std,
        "hashes": {name: hashes(split) for name, split in splits.items()},
        "notes": notes,
        "made_from": made_from,
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def checked_size(image: Image.Image, size: tuple[int, int], entry: Entry, source: Source) -> tuple[int, int]:
    """(H, W) of an image; UserError where it is too large, or not `size`, that of the images before it."""
    found = image.height, image.width
    advice = "set config.dataset.image_size=64 or =(HEIGHT,WIDTH): all are cropped and resized to it"
    if any(size) and found != size:
        what = f"{entry.name} is {found[0]}x{found[1]}, those before it are {size[0]}x{size[1]}"
        raise UserError(f"{source.words} has images of several sizes: {what}\n{advice}")
    if max(found) > LARGEST:
        raise UserError(f"{source.words} has images of {found[0]}x{found[1]} pixels: {advice}")
    return found


def moments(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation (1 where it is 0) per channel, of images scaled to [0, 1], to four digits."""
    sums = np.zeros((2, images.shape[3]), np.int64)  # of values and of their squares: exact, so in any order
    for some in chunks(images):
        values = some.reshape(-1, images.shape[3]).astype(np.int64)
        sums += np.stack([values.sum(axis=0), (values**2).sum(axis=0)])
    mean, of_squares = sums / np.prod(images.shape[:3])
    std = np.round(np.sqrt(np.maximum(of_squares - mean**2, 0)) / 255, 4)
    return np.round(mean / 255, 4).tolist(), np.where(std > 0, std, 1.0).tolist()
