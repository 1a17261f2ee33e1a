"""Loads data sets: finds the prepared one, or prepares it from where it comes from."""

import gzip
import hashlib
import importlib.util
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from attn_cnn_jax.data import own, store
from attn_cnn_jax.data.own import Collection
from attn_cnn_jax.data.sets import OWN, SPECS, Dataset, Source, Split
from attn_cnn_jax.data.store import Say
from attn_cnn_jax.errors import UserError, command_line, shortened

log = logging.getLogger(__name__)


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
    tag = hashlib.blake2b(repr(choices).encode(errors="surrogateescape"), digest_size=5).hexdigest()
    return data_folder(data_dir) / "prepared" / (source.name if source.name in SPECS else f"{slug(source)}_{tag}")


def digits() -> Dataset:
    """The 1,797 handwritten digits, 8x8 grey pixels, that come with scikit-learn, in its order.

    Every fifth image of each class is a test image. Values 0 .. 16 become round(255 / 16 * value).
    """
    # What `sklearn.datasets.load_digits` reads; to import scikit-learn takes two seconds.
    package: Any = importlib.util.find_spec("sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        values = np.loadtxt(file, delimiter=",")
    images = np.round(values[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    labels = values[:, -1].astype(np.int32)
    is_test = np.zeros(len(labels), bool)
    for digit in range(10):
        is_test[np.flatnonzero(labels == digit)[4::5]] = True
    return Dataset(Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test]), SPECS["digits"])


def load(source: Source | str, data_dir: str | Path | None = None, say: Say = log.info) -> Dataset:
    """A data set, prepared first where that is needed; see `prepare`."""
    source = Source(source) if isinstance(source, str) else source
    if source.name != "digits":
        prepare(source, data_dir, say=say)
    return read(source, data_dir)


def read(source: Source, data_dir: str | Path | None = None) -> Dataset:
    """A data set that is prepared; writes nothing. UserError where it is not there, or damaged."""
    if source.name == "digits":
        return digits()
    folder = folder_of(source, data_dir)
    again = command_line("prepare", *source.options(), *(["--data-dir", str(data_dir)] if data_dir else []))
    if not folder.exists():
        raise UserError(
            f"The data set {source.words} is not in {folder.parent.parent}.\nPrepare it by `{again}`, or name the "
            "folder where it is by --data-dir=DIR or the variable TFDS_DATA_DIR."
        )
    try:
        return store.read(folder, source.name)
    except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
        what = f"The prepared data set {folder} is damaged: {shortened(error)}"
        raise UserError(f"{what}.\nPrepare it again: `{again} --replace`.") from error


def prepare(
    source: Source, data_dir: str | Path | None = None, *, archive: Any = None, replace: bool = False, say: Say = print
) -> bool:
    """Prepares a data set unless it is there, made from what there is now; returns whether it did.

    CIFAR comes from a `cifar.Archive` if one is given, else from what tfds has there, or downloads. With `replace` it
    is made anew. `say` is called with a line of text at each stage. UserError where it cannot be read or written.
    """
    folder = folder_of(source, data_dir)

    def made_from() -> str | None:
        return own.stamp(own_path(source)) if source.name in OWN else archive and archive.sha256

    def is_there() -> bool:
        about = None if replace else store.read_about(folder)
        # None: nothing was named, or the files are gone and the copy is all there is.
        return about is not None and made_from() in (about.get("made_from"), None)

    try:
        if is_there():
            return False
        with store.making(folder, slug(source), say) as new:
            if is_there():  # made by the process that held the lock
                return False
            before = made_from()
            with tempfile.TemporaryDirectory(dir=new) as scratch:
                collection = collect(source, data_folder(data_dir), Path(scratch), archive, replace, say)
                say(f"Writing {folder}")
                store.write(new, collection, source, before)
        return True
    except OSError as error:
        raise UserError(
            f"Cannot write the data set {source.words} to {folder}: {error.strerror or error}.\n"
            "Make room there, or choose another folder by config.dataset.data_dir, --data-dir or TFDS_DATA_DIR."
        ) from error


def collect(source: Source, data_folder: Path, scratch: Path, archive: Any, replace: bool, say: Say) -> Collection:
    """The images of a data set, before they are read; see `prepare`."""
    if source.name == "folder":
        return own.collect_folder(own_path(source), source)
    if source.name == "npz":
        return own.collect_npz(own_path(source), source, scratch)
    from attn_cnn_jax.data import tfds  # takes long to import

    return tfds.collect(source, data_folder, archive, replace, say)
