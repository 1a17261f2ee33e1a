"""Loads data sets: finds the prepared one, or makes it from where it comes from."""

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

from attn_cnn_jax.data import cifar, own, store
from attn_cnn_jax.data.sets import OWN, SPECS, Dataset, Source, Split
from attn_cnn_jax.data.store import Say
from attn_cnn_jax.errors import UserError, command_line, listed, shortened

log = logging.getLogger(__name__)


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Returns where data sets are: the folder given, or $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser().absolute()


def folder_of(source: Source, data_dir: str | Path | None = None) -> Path:
    """Returns where a data set is prepared: `prepared/NAME` in the data folder."""
    if source.name in SPECS:
        return data_folder(data_dir) / "prepared" / source.name
    path = own_path(source) if source.path else Path()
    choices = [source.name, str(path), *source.image_size, float(source.test_fraction)]
    tag = hashlib.blake2b(repr(choices).encode(errors="surrogateescape"), digest_size=5).hexdigest()
    slug = re.sub(r"\W+", "_", f"{source.name}_{path.stem}".lower(), flags=re.ASCII).strip("_")[:30]
    return data_folder(data_dir) / "prepared" / f"{slug}_{tag}"


def own_path(source: Source) -> Path:
    """Returns where the user's own images are."""
    return Path(source.path).expanduser().absolute()


def digits() -> Dataset:
    """Returns the 1,797 handwritten digits, 8x8 grey pixels, that come with scikit-learn, in its order.

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
    """Returns a data set, after preparing it where that is needed; see `prepare`."""
    source = Source(source) if isinstance(source, str) else source
    if source.name == "digits":
        return digits()
    prepare(source, data_dir, say=say)
    return read(source, data_dir)


def read(source: Source, data_dir: str | Path | None = None) -> Dataset:
    """Returns a data set that is prepared; writes nothing.

    Raises:
      UserError: it is not there, or damaged.
    """
    if source.name == "digits":
        return digits()
    folder = folder_of(source, data_dir)
    again = command_line("prepare", *source.options(), *(["--data-dir", str(data_dir)] if data_dir else []))
    about = store.read_about(folder)
    if about is None and not folder.exists():
        raise UserError(
            f"The data set {source.words} is not in {folder.parent.parent}.\nPrepare it by `{again}`, or name the "
            "folder where it is by --data-dir=DIR or the variable TFDS_DATA_DIR."
        )
    if about and about["skipped"] and not source.skip_unreadable:
        raise UserError(f"{about['skipped'][0]}\n{store.SKIP}")
    try:
        dataset = store.read(folder, source.name)
    except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
        what = f"The prepared data set {folder} is damaged: {shortened(error)}"
        raise UserError(f"{what}.\nPrepare it again: `{again} --replace`.") from error
    spec, found = dataset.spec, (len(dataset.train.labels), len(dataset.test.labels))
    if spec.train_examples and found != (spec.train_examples, spec.test_examples):
        log.warning(
            f"{source.name} in {folder}: a reduced copy with {found[0]:,} training and {found[1]:,} test images "
            f"(the official data set has {spec.train_examples:,} and {spec.test_examples:,})."
        )
    elif not (about or {}).get("origin", {}).get("official", True):
        log.warning(f"{source.name} in {folder}: made from an archive whose SHA-256 is not the official one.")
    return dataset


def is_prepared(source: Source, data_dir: str | Path | None = None) -> bool:
    """Whether a data set is in a data folder, or needs none."""
    return source.name == "digits" or folder_of(source, data_dir or None).exists()


def prepare(
    source: Source,
    data_dir: str | Path | None = None,
    *,
    archive: cifar.Archive | None = None,
    replace: bool = False,
    say: Say = print,
) -> bool:
    """Prepares a data set unless it is there, made from what there is now; returns whether it did.

    Args:
      source: where it comes from.
      data_dir: see `data_folder`.
      archive: of CIFAR, to make it from; None downloads it unless tfds has prepared it there.
      replace: make it anew even if it is there; the old one goes when the new one is complete.
      say: called with a line of text at each stage.

    Raises:
      UserError: it cannot be read, downloaded or written, or is there already, made from another archive.
    """
    folder = folder_of(source, data_dir)

    def is_there() -> bool:
        about = store.read_about(folder)
        if about is None or replace or (archive and about["origin"] != archive.origin):
            return False
        stamp = own.stamp(own_path(source)) if source.name in OWN else None
        return stamp in (about.get("stamp"), None)  # None: the files are gone, and the copy is all there is

    try:
        if is_there():
            return False
        with store.locked(folder, say):
            if is_there():
                return False
            with store.replacing(folder) as new, tempfile.TemporaryDirectory(dir=new) as scratch:
                collection, facts = collect(source, data_folder(data_dir), Path(scratch), archive, replace, say)
                say(f"Writing {folder}")
                store.write(new, collection, source, facts)
            return True
    except OSError as error:
        raise UserError(
            f"Cannot write the data set {source.words} to {folder}: {error.strerror or error}.\n"
            "Make room there, or choose another folder by config.dataset.data_dir, --data-dir or TFDS_DATA_DIR."
        ) from error


def collect(
    source: Source, data_folder: Path, scratch: Path, archive: cifar.Archive | None, replace: bool, say: Say
) -> tuple[own.Collection, dict]:
    """Returns the images of a data set and what `about.json` keeps of where they come from; see `prepare`."""
    if source.name not in OWN:
        from attn_cnn_jax.data import tfds  # takes long to import

        collection, origin = tfds.collect(source, data_folder, archive=archive, replace=replace, say=say)
        return collection, {"origin": origin}
    path = own_path(source)
    facts = {"stamp": own.stamp(path), "origin": {"path": str(path)}}
    return (own.collect_folder if source.name == "folder" else own.collect_npz)(path, source, scratch), facts


def describe(source: Source, data_dir: str | Path | None = None) -> list[str]:
    """Returns lines on how the user's own images were prepared; none for the data sets of the package."""
    about = store.read_about(folder_of(source, data_dir))
    if about is None or source.name in SPECS:
        return []
    counts = ", ".join(f"{hashes['shape'][0]:,} {split}" for split, hashes in about["hashes"].items())
    mean, std = (", ".join(f"{number:.4f}" for number in about[key]) for key in ("mean", "std"))
    lines = [
        f"{counts} images of {len(about['class_names'])} classes, {'x'.join(map(str, about['image_shape']))}, "
        f"mean {mean}, standard deviation {std}",
        *about["notes"],
    ]
    if skipped := about["skipped"]:
        lines.append(f"skipped {len(skipped):,} that cannot be read: {listed(skipped)}")
    if ignored := about["ignored"]:
        lines.append(f"passed over {len(ignored):,} that are no images: {listed(ignored)}")
    return [f"{source.words}: {line}" for line in lines]
