"""The user's own data, prepared once: read, fitted to one size, and written as a tfds data set of ArrayRecord files.

The records lie in the order of the collection, so that record n is picture n. Beside them `about.json` holds what is
known only once every picture was read: mean and standard deviation of the training pictures, and what was skipped.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from attn_cnn_jax.data.builders import Recipe, Spec, folder, npz, tfds_set
from attn_cnn_jax.data.builders.collection import Collection, Entry
from attn_cnn_jax.data.pictures import Unreadable, fit
from attn_cnn_jax.data.preparation.records import Moments, write_metadata, write_split
from attn_cnn_jax.errors import UserError

ABOUT = "about.json"
VERSION = "1.0.0"
LARGEST = 256  # pixels of a side that pictures may have without config.dataset.image_size
MOST_NAMED = 5  # files in a line of the log
SKIP = "repair or remove it, or set config.dataset.skip_unreadable=True to leave out what cannot be read"


class Own(Recipe):
    """A folder of class folders, a .npz file, or a set of tensorflow-datasets."""

    def __init__(
        self,
        name: str,
        path: str,
        *,
        image_size: tuple[int, int] = (0, 0),
        test_fraction: float = 0.2,
        split_seed: int = 0,
        skip_unreadable: bool = False,
    ):
        """Names the data; nothing is read.

        Args:
          name: `folder`, `npz` or `tfds:NAME`.
          path: the folder or file; "" for a set of tfds.
          image_size: `(H, W)` in pixels; `(0, 0)` for the size that all pictures have.
          test_fraction: part of each class that becomes the test split where there is none, 0 to 1.
          split_seed: chooses which.
          skip_unreadable: leave out pictures that cannot be read instead of refusing them.
        """
        self.name = name
        self.words = f"{name} {path}".strip()
        self.path = Path(path).expanduser().absolute() if path else Path()
        self.image_size, self.test_fraction, self.split_seed = image_size, test_fraction, split_seed
        self.skip_unreadable = skip_unreadable
        choices = [name, str(self.path), *image_size, float(test_fraction), split_seed]
        tag = hashlib.blake2b(repr(choices).encode(errors="surrogateescape"), digest_size=5).hexdigest()
        self.place = f"{slug(f'{name}_{self.path.stem}')}_{tag}"

    @property
    def version(self) -> str:
        return VERSION

    def open(self, folder: Path) -> Any:
        import tensorflow_datasets as tfds

        return tfds.builder_from_directory(folder)

    def spec(self, folder: Path) -> Spec:
        about = read_about(folder)
        skipped = about["skipped"]
        if skipped and not self.skip_unreadable:
            raise Unreadable(f"{skipped[0]['error']}\n{SKIP}")
        height, width, channels = about["image_shape"]
        names = tuple(about["class_names"])
        return Spec(
            self.name,
            (height, width, channels),
            len(names),
            tuple(about["mean"]),
            tuple(about["std"]),
            names,
            has_validation="validation" in about["examples"],
        )

    def is_current(self, folder: Path) -> bool:
        """Returns whether the files are those that it was made from, or are gone; a kept copy then is all there is."""
        try:
            made_from = read_about(folder)["stamp"]
        except (OSError, ValueError, KeyError):
            return False
        return self.stamp() in (made_from, None)

    def stamp(self) -> str | None:
        """Returns a hash that tells whether the files have changed; None where they are gone, or are those of tfds."""
        kinds = {"folder": folder, "npz": npz}
        return kinds[self.name].stamp(self.path) if self.name in kinds else None

    def collect(self, data_dir: Path, download: bool = True) -> Collection:
        """Returns the pictures; of a set of tfds, prepared in a data folder, with or without the network."""
        if self.name.startswith(tfds_set.PREFIX):
            name = self.name.removeprefix(tfds_set.PREFIX)
            return tfds_set.collect(name, data_dir, self.test_fraction, self.split_seed, download=download)
        kind = folder if self.name == "folder" else npz
        return kind.collect(self.path, self.test_fraction, self.split_seed)

    def describe(self, folder: Path) -> tuple[str, ...]:
        about = read_about(folder)
        counts = ", ".join(f"{count:,} {split}" for split, count in about["examples"].items())
        height, width, channels = about["image_shape"]
        lines = [
            f"{self.words}: {counts} pictures of {len(about['class_names'])} classes, {height}x{width}x{channels}, "
            f"mean {in_words(about['mean'])}, standard deviation {in_words(about['std'])}"
        ]
        if about["note"]:
            lines.append(f"{self.words}: {about['note']}")
        if skipped := about["skipped"]:
            shown = "; ".join(each["error"] for each in skipped[:MOST_NAMED])
            more = f"; and {len(skipped) - MOST_NAMED:,} more" if len(skipped) > MOST_NAMED else ""
            lines.append(f"{self.words}: skipped {len(skipped):,} that cannot be read: {shown}{more}")
        if ignored := about["ignored"]:
            lines.append(
                f"{self.words}: {len(ignored):,} files are no pictures and were passed over, such as {ignored[0]}"
            )
        return tuple(lines)

    def prepare_options(self) -> tuple[str, ...]:
        options = [self.name, *(["--path", str(self.path)] if self.path.name else [])]
        if any(self.image_size):
            options += ["--image-size", "x".join(map(str, self.image_size))]
        if self.test_fraction != 0.2:
            options += ["--test-fraction", str(self.test_fraction)]
        if self.split_seed:
            options += ["--split-seed", str(self.split_seed)]
        return (*options, *(["--skip-unreadable"] if self.skip_unreadable else []))

    def write(self, folder: Path, data_dir: Path, *, download: bool = True) -> None:
        """Reads every picture and writes the data set into a new folder.

        Args:
          folder: to create.
          data_dir: where prepared data sets lie.
          download: False never uses the network.

        Raises:
          UserError: naming the file, for what cannot be read or makes no data set.
        """
        stamp, collection = self.stamp(), self.collect(data_dir, download)
        skipped: dict[Entry, str] = {}
        attempt = skipping(skipped) if self.skip_unreadable else refusing
        shape = self.choose_shape(collection, attempt)
        folder.mkdir(parents=True)
        moments = Moments(shape[2])
        counts = {}
        for split, entries in collection.splits.items():
            pictures = (
                (entry.label, pixels)
                for entry in entries
                if entry not in skipped
                if (pixels := attempt(lambda entry: fit(collection.read(entry, shape[2]), shape[:2]), entry))
                is not None
            )
            seen = Counter()
            counts[split] = write_split(
                folder, split, shape, collection.class_names, watched(pictures, split, seen, moments)
            )
            for label, name in enumerate(collection.class_names):
                if not seen[label]:
                    raise UserError(f"{self.words}: no {split} picture of the class {name!r} can be read")
        mean, std = moments.result()
        about = {
            "source": str(self.path),
            "stamp": stamp,
            "class_names": collection.class_names,
            "image_shape": shape,
            "mean": mean,
            "std": std,
            "examples": {split: count[0] for split, count in counts.items()},
            "note": collection.note,
            "skipped": [{"name": entry.name, "error": error} for entry, error in skipped.items()],
            "ignored": collection.ignored,
        }
        write_metadata(folder, shape, collection.class_names, counts)
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    def choose_shape(self, collection: Collection, attempt: "Attempt") -> tuple[int, int, int]:
        """Returns (H, W, C) of the prepared pictures: C is 1 if all training pictures are grey, else 3."""
        entries = list(itertools.chain.from_iterable(collection.splits.values()))
        headers = {entry: header for entry in entries if (header := attempt(collection.header, entry)) is not None}
        if not headers:
            raise UserError(f"{self.words}: no picture can be read")
        channels = max((headers[entry][2] for entry in collection.splits["train"] if entry in headers), default=1)
        if any(self.image_size):
            return (*self.image_size, channels)
        sizes = Counter(header[:2] for header in headers.values())
        (height, width), _ = sizes.most_common(1)[0]
        if len(sizes) > 1:
            other = next(entry for entry, header in headers.items() if header[:2] != (height, width))
            raise UserError(
                f"{self.words} has pictures of {len(sizes)} sizes: most are {height}x{width}, "
                f"{other.name} is {headers[other][0]}x{headers[other][1]}\n"
                "set config.dataset.image_size=64 or =(HEIGHT,WIDTH): all are cropped and resized to it"
            )
        if max(height, width) > LARGEST:
            raise UserError(
                f"{self.words} has pictures of {height}x{width} pixels: "
                "set config.dataset.image_size=64 or =(HEIGHT,WIDTH), to which all are cropped and resized"
            )
        return height, width, channels


Attempt = Callable[[Callable[[Entry], Any], Entry], Any]


def refusing(read: Callable[[Entry], Any], entry: Entry) -> Any:
    """Returns `read(entry)`; adds to the error of an unreadable picture how to go on without it."""
    try:
        return read(entry)
    except Unreadable as error:
        raise Unreadable(f"{error}\n{SKIP}") from error


def skipping(skipped: dict[Entry, str]) -> Attempt:
    """Returns a function that reads an entry, or returns None and notes why in `skipped`."""

    def attempt(read: Callable[[Entry], Any], entry: Entry) -> Any:
        try:
            return read(entry)
        except Unreadable as error:
            skipped[entry] = str(error)
            return None

    return attempt


def watched(pictures: Iterable[tuple[int, np.ndarray]], split: str, seen: Counter, moments: Moments):
    """Yields the pictures; counts classes, and adds those of the training split to the moments."""
    for label, pixels in pictures:
        seen[label] += 1
        if split == "train":
            moments.add(pixels)
        yield label, pixels


def read_about(folder: Path) -> dict[str, Any]:
    """Returns what `about.json` of a prepared folder says.

    Raises:
      OSError, ValueError: it is missing or damaged.
    """
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    if not isinstance(about, dict):
        raise ValueError(f"{ABOUT} holds no JSON object")
    return about


def slug(text: str) -> str:
    """Returns a name as tfds allows in file names: small letters, digits and underscores, at most 30."""
    return re.sub(r"\W+", "_", text.lower(), flags=re.ASCII).strip("_")[:30] or "pictures"


def in_words(numbers: list[float]) -> str:
    """Returns `0.4914, 0.4822, 0.4465`."""
    return ", ".join(f"{number:.4f}" for number in numbers)
