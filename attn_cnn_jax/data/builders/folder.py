"""A folder of class folders: DIR/CLASS/PICTURE, or DIR/train/CLASS/PICTURE with DIR/test, DIR/validation beside it.

Without DIR/test a part of the training pictures of every class becomes the test split, chosen by a hash of the
picture's name and of a seed: a picture that is added moves at most one other of its class.
"""

import hashlib
import os
from pathlib import Path

from PIL import Image

from attn_cnn_jax.data.builders.collection import SPLITS, Collection, Entry, check_class_names, split_note, split_off
from attn_cnn_jax.data.pictures import SUFFIXES, read_header, read_picture
from attn_cnn_jax.errors import UserError

NOT_OURS = ("thumbs.db", "desktop.ini", "__macosx")  # what systems leave in folders
PER_CLASS = "DIR/CLASS/picture.png, or DIR/train/CLASS/picture.png with DIR/test beside train"


def collect(path: Path, test_fraction: float, split_seed: int) -> Collection:
    """Returns the pictures below a folder; none is opened.

    Args:
      path: the folder.
      test_fraction: part of each class that becomes the test split where there is no folder of that name, 0 to 1.
      split_seed: chooses which.

    Raises:
      UserError: naming the folder or file, where they are not laid out as above.
    """
    inside = classes_in(path)
    ignored: list[str] = []
    if not {"train", "test", "validation"} & set(inside):
        names = tuple(sorted(inside))
        check_class_names(names, str(path))
        splits = {"train": entries_of(path, names, ignored)}
    else:
        if "train" not in inside:
            raise UserError(f"{path} has no folder train beside {', '.join(sorted(inside))}: lay it out as {PER_CLASS}")
        if strange := sorted(set(inside) - set(SPLITS)):
            raise UserError(
                f"{path / strange[0]}: allowed beside train are test and validation; lay it out as {PER_CLASS}"
            )
        names = tuple(sorted(classes_in(path / "train")))
        check_class_names(names, str(path / "train"))
        splits = {}
        for split in SPLITS:
            if split in inside:
                check_same_classes(path / split, names)
                splits[split] = entries_of(path / split, names, ignored)
    note = ""
    if "test" not in splits:
        ranks = [rank(path, entry, split_seed) for entry in splits["train"]]
        splits["train"], splits["test"] = split_off(splits["train"], ranks, names, str(path), test_fraction)
        note = split_note(test_fraction, split_seed)
    return Collection(
        names,
        splits,
        header=lambda entry: read_header(entry.key),
        read=lambda entry, channels: read_picture(entry.key, channels),
        note=note,
        ignored=tuple(ignored),
    )


def listing(path: Path) -> list[os.DirEntry]:
    """Returns what lies in a folder, without what systems leave there; UserError where it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return [each for each in entries if not each.name.startswith(".") and each.name.lower() not in NOT_OURS]
    except FileNotFoundError:
        raise UserError(f"config.dataset.path: there is no folder {path}") from None
    except NotADirectoryError:
        raise UserError(f"config.dataset.path: {path} is a file; unpack it, and give the folder") from None


def is_folder(entry: os.DirEntry) -> bool:
    """Returns whether an entry is a folder or a link to one; UserError for a link that leads nowhere."""
    try:
        if entry.is_symlink():
            os.stat(entry.path)
        return entry.is_dir()
    except OSError as error:
        raise UserError(f"{printable(entry.path)} cannot be followed: {error.strerror}; remove the link") from error


def classes_in(path: Path) -> set[str]:
    """Returns the names of the folders in a folder; UserError where pictures lie beside them, or there are none."""
    folders = set()
    for entry in listing(path):
        if is_folder(entry):
            folders.add(entry.name)
        elif entry.name.lower().endswith(SUFFIXES):
            raise UserError(f"{printable(entry.path)} lies in no class folder: lay the pictures out as {PER_CLASS}")
    if not folders:
        raise UserError(f"{path} holds no folders: lay the pictures out as {PER_CLASS}")
    return folders


def check_same_classes(path: Path, names: tuple[str, ...]) -> None:
    """Raises UserError unless a split has the classes of the training split."""
    found = classes_in(path)
    if strange := sorted(found - set(names)):
        raise UserError(f"{printable(path / strange[0])} is a class that train lacks: add it there, or remove it here")
    if missing := sorted(set(names) - found):
        raise UserError(
            f"{path} lacks the class {missing[0]!r} of train, {len(missing)} of {len(names)} in all: "
            "every split needs every class"
        )


def entries_of(path: Path, names: tuple[str, ...], ignored: list[str]) -> list[Entry]:
    """Returns the pictures of a split, ordered by file name, then class; adds files of other kinds to `ignored`."""
    known = set(Image.registered_extensions())
    found = []
    for label, name in enumerate(names):
        before = len(found)
        for entry in listing(path / name):
            suffix = os.path.splitext(entry.name)[1].lower()
            if suffix in SUFFIXES:  # what is a folder or no picture is found when it is read
                found.append((entry.name, label, entry.path))
            elif is_folder(entry):
                raise UserError(f"{printable(entry.path)} is a folder in a class folder: move its pictures up")
            elif suffix in known:
                raise UserError(
                    f"{printable(entry.path)}: PNG, JPEG and WebP are read, {suffix} is not; convert it or move it away"
                )
            else:
                ignored.append(entry.path)
        if len(found) == before:
            raise UserError(f"{path / name} holds no pictures: add some ({', '.join(SUFFIXES)}), or remove the folder")
    for name, _, place in found:
        if not name.isprintable():
            raise UserError(f"{printable(place)} has a name that cannot be printed: rename it")
    return [Entry(place, place, label) for _, label, place in sorted(found)]


def rank(path: Path, entry: Entry, seed: int) -> bytes:
    """Returns a hash of a seed and of where a picture lies below a folder."""
    return hashlib.blake2b(f"{seed}/{os.path.relpath(entry.key, path)}".encode(), digest_size=16).digest()


def stamp(path: Path) -> str | None:
    """Returns a hash of the names, sizes and times of all files below a folder, None where the folder is not there."""
    if not path.is_dir():
        return None
    digest = hashlib.blake2b(digest_size=16)
    for folder, folders, files in os.walk(path, followlinks=False):
        # A class may be a link to a folder; deeper ones are no layout that `collect` accepts.
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for link in linked:
            place = os.path.join(folder, link)
            files += [os.path.join(link, name) for name in (os.listdir(place) if os.path.isdir(place) else ())]
        folders.sort()
        for name in sorted(files):
            place = os.path.join(folder, name)
            try:
                status = os.stat(place)
                facts = (status.st_size, status.st_mtime_ns)
            except OSError:
                facts = None
            digest.update(repr((os.path.relpath(place, path), facts)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def printable(path: str | Path) -> str:
    """Returns a path as a terminal can show it."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
