"""Sets of tensorflow-datasets without TensorFlow: CIFAR-10, CIFAR-100, and others by name as far as that goes.

A set that is prepared in the data folder is read, whoever prepared it, if its files are ArrayRecord. One that is not
there is prepared by its builder. Many of those read archives or encode images with TensorFlow: arrays are handed over
to Pillow instead, which writes the same PNG; for the rest the error says how to go on.
"""

import contextlib
import http.client
import importlib.resources.abc
import io
import json
import logging
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from filelock import FileLock
from PIL import Image
from tensorflow_datasets.image_classification import cifar as stock

from attn_cnn_jax.data import cifar
from attn_cnn_jax.data.own import SPLITS, Collection, Entry, checked_names, split_off
from attn_cnn_jax.data.pictures import read_header, read_picture
from attn_cnn_jax.data.sets import TFDS, Source
from attn_cnn_jax.errors import UserError, command_line, shortened

# tfds asks for this backport when it makes a builder, does not declare it, and Python has it itself since 3.11.
sys.modules.setdefault("importlib_resources", importlib.resources)

PROBE_SECONDS = 6  # with all imports the answer comes within 15 s, even where a firewall drops every packet


class Cifar10(stock.Cifar10, skip_registration=True):
    """`cifar10` of tfds: its names, ids and order, from `archive` (None: what it downloads), without TensorFlow."""

    name = "cifar10"
    url_infos = stock.Cifar10.url_infos  # sizes and checksums, which tfds looks for beside the file of a builder
    archive: cifar.Archive | None = None

    def _info(self) -> tfds.core.DatasetInfo:
        info = super()._info()
        # tfds would ask the network for statistics of this data set, and leave a folder in $TMPDIR.
        info.initialize_from_bucket = lambda: None
        return info

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> Any:
        archive = self.archive or cifar.read(str(dl_manager.download(self._cifar_info.url)), self.name)
        features: Any = self.info.features
        for key, names in zip(self._cifar_info.label_keys, archive.class_names, strict=True):
            features[key].names = list(names)
        # tfds moves this folder into place when it is complete, and the origin with it.
        (self.data_path / "archive.json").write_text(json.dumps(archive.origin) + "\n")
        return {split: self.examples(archive, split) for split in ("train", "test")}

    def examples(self, archive: cifar.Archive, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the key and the features of each image of the split `train` or `test`."""
        pairs = zip(archive.images[split], archive.labels[split], strict=True)
        for index, (image, labels) in enumerate(pairs):
            record = {"id": f"{split}_{index:05d}", "image": Image.fromarray(image)}
            yield index, record | dict(zip(self._cifar_info.label_keys, map(int, labels), strict=True))


class Cifar100(Cifar10, stock.Cifar100, skip_registration=True):
    """`cifar100` of tfds: as `cifar10`, with `label` 0 .. 99 and `coarse_label` 0 .. 19."""

    name = "cifar100"
    url_infos = stock.Cifar100.url_infos


CIFAR = {"cifar10": Cifar10, "cifar100": Cifar100}


def collect(
    source: Source,
    data_dir: Path,
    *,
    archive: cifar.Archive | None = None,
    replace: bool = False,
    say: Callable[[str], object] = print,
) -> tuple[Collection, dict[str, Any]]:
    """Returns the images of a set and what is known of their origin; its records are prepared first if need be.

    Args:
      source: `cifar10`, `cifar100`, or `tfds:NAME` such as `tfds:fashion_mnist` or `tfds:emnist/letters`.
      data_dir: where sets of tfds are.
      archive: of CIFAR, to make it from; None downloads it.
      replace: make the records of CIFAR anew even if they are there.
      say: called with a line of text at each stage.

    Raises:
      UserError: there is no such set, it holds no classified images, or it cannot be prepared or read here.
    """
    name = source.name
    with FileLock(data_dir / "prepared" / f"{re.sub('[^a-z0-9]', '_', name)}.records.lock"):  # for any size of images
        place = data_dir / name / str(Cifar10.VERSION)
        if name in CIFAR and place.exists():
            if not replace and archive and read_origin(place) != archive.origin:
                raise UserError(
                    f"{place} is already prepared, from another archive.\n"
                    "Add --replace to put this one in its place, or choose another --data-dir."
                )
            if replace:
                if archive is None:
                    check_network(name, CIFAR[name].url_infos, data_dir)
                shutil.rmtree(place)
        builder = find(name, data_dir)
        image, label = feature_names(name, builder)
        place = Path(builder.data_path)
        if not place.exists():
            prepare(name, builder, image, data_dir, archive, say)
        elif not (place / "dataset_info.json").is_file():
            raise UserError(f"{place} is not complete: dataset_info.json is missing\nremove it, or copy it again")
    names = checked_names(map(str.strip, builder.info.features[label].names), name)
    sources = {split: data_source(name, builder, split, image) for split in SPLITS if split in builder.info.splits}
    if "train" not in sources:
        raise UserError(f"{name} has no split train, only {', '.join(builder.info.splits) or 'none'}: choose another")
    splits = {split: entries_of(name, place, split, each, label, len(names)) for split, each in sources.items()}
    notes = split_off(splits, names, name, source.test_fraction)
    shape = builder.info.features[image].shape
    channels = 1 if shape[2] == 1 else 3

    def file(entry: Entry) -> io.BytesIO:
        split, position = entry.key
        with reading(name, place):
            return io.BytesIO(sources[split][position][image])

    def header(entry: Entry) -> tuple[int, int, int]:
        height, width = shape[:2] if None not in shape else read_header(file(entry))[:2]
        return height, width, channels

    def read(entry: Entry, channels: int) -> Image.Image:
        return read_picture(file(entry), channels, None, size=source.image_size, name=entry.name)

    return Collection(names, splits, header, read, notes), read_origin(place)


def read_origin(place: Path) -> dict[str, Any]:
    """Returns what a prepared CIFAR notes of the archive it was made from; {} where that is not known."""
    try:
        return json.loads((place / "archive.json").read_text())
    except (OSError, ValueError):
        return {}


def find(name: str, data_dir: Path) -> Any:
    """Returns the builder of a set, also of one that tfds does not know but that is prepared in the data folder."""
    if name in CIFAR:
        with reading(name, data_dir / name / str(Cifar10.VERSION)):
            return CIFAR[name](data_dir=data_dir)
    known = name.removeprefix(TFDS)
    if known == name or not re.fullmatch(r"[A-Za-z]\w*(/[\w+.-]+)?(:\d+\.\d+\.\d+)?", known):
        raise UserError(f"config.dataset.name={name!r}: allowed is tfds:NAME, tfds:NAME/CONFIG or either with :VERSION")
    try:
        with silent():
            return tfds.builder(known, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        said = f"tensorflow-datasets knows no such set, and none of that name is in {data_dir}"
        raise UserError(f"config.dataset.name={name!r}: {said}\nsee tensorflow.org/datasets/catalog") from error
    except Exception as error:  # builders run code of their own
        raise cannot(name, data_dir, error) from error


def feature_names(name: str, builder: Any) -> tuple[str, str]:
    """Returns which features are the image and its class; UserError where there is not one of each."""
    features, found = builder.info.features, []
    kinds: dict[str, Any] = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    for kind in (tfds.features.Image, tfds.features.ClassLabel):
        fits = [key for key, feature in kinds.items() if type(feature) is kind]
        fits = [key for key in builder.info.supervised_keys or () if key in fits] or fits
        if len(fits) != 1:
            held = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in kinds.items()) or "no features"
            raise UserError(f"{name} is no set of images with one class each: it has {held}")
        found += fits
    if kinds[found[0]].np_dtype != np.uint8:
        raise UserError(f"{name} has images of {np.dtype(kinds[found[0]].np_dtype)}: allowed is uint8")
    return found[0], found[1]


def prepare(
    name: str,
    builder: Any,
    image: str,
    data_dir: Path,
    archive: cifar.Archive | None,
    say: Callable[[str], object],
) -> None:
    """Lets the set's builder download and write it as ArrayRecord; UserError where that fails."""
    from_network = archive is None and bool(builder.url_infos)
    if from_network:
        check_network(name, builder.url_infos, data_dir)
    if name in CIFAR:
        builder.archive = archive
    else:
        hand_to_pillow(builder.info.features[image])
    say(f"Downloading {name}" if from_network else f"Writing {builder.data_path}")
    config = tfds.download.DownloadConfig(try_download_gcs=False, force_checksums_validation=name in CIFAR)
    try:
        with silent(progress=from_network and sys.stderr.isatty()):
            builder.download_and_prepare(
                file_format="array_record", download_dir=data_dir / "downloads", download_config=config
            )
    except (UserError, MemoryError):
        raise
    except Exception as error:  # builders run code of their own
        if isinstance(error, tfds.download.DownloadError) or type(error).__module__.startswith("requests"):
            raise missing(name, data_dir, shortened(error)) from error
        if isinstance(error, OSError):
            raise
        full = re.search(r"\w+\(\) failed: ([^;]+); writing", str(error))  # of ArrayRecord's writer, a C++ library
        raise OSError(0, full[1], str(builder.data_path)) if full else cannot(name, data_dir, error) from error


def check_network(name: str, urls: Any, data_dir: Path) -> None:
    """Raises UserError if the host of a set does not answer within seconds; tfds would try for minutes."""
    url = next(iter(urls))
    try:
        request = urllib.request.Request(url, method="HEAD")
        urllib.request.build_opener().open(request, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:  # a host that refuses HEAD is there
        pass
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise missing(name, data_dir, f"{url}: {shortened(error)}") from error


def hand_to_pillow(feature: Any) -> None:
    """Lets Pillow encode images that are arrays; tfds would do so with TensorFlow."""
    encode = feature.encode_example

    def encode_example(image: Any) -> Any:
        if isinstance(image, np.ndarray) and image.dtype == np.uint8:
            image = Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image)
        return encode(image)

    feature.encode_example = encode_example


def data_source(name: str, builder: Any, split: str, image: str) -> Any:
    """Returns the records of a split by position, images still encoded; UserError unless they are whole ArrayRecord."""
    place, form = Path(builder.data_path), builder.info.file_format
    form = getattr(form, "value", form)
    if form not in ("array_record", None):
        raise UserError(
            f"{name} is in {place} as {form}, which only TensorFlow reads\non a machine with TensorFlow prepare it as "
            f"ArrayRecord in another folder, `{command_line('prepare', name, '--data-dir', 'DIR')}`, and copy DIR"
        )
    expected = builder.info.splits[split].num_examples
    with reading(name, place), silent():
        source = builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})
        if len(source) != expected:
            raise ValueError(f"{len(source)} {split} images where {expected} are announced")
        return source


def entries_of(name: str, place: Path, split: str, source: Any, label: str, num_classes: int) -> list[Entry]:
    """Returns the images of a split, ordered by their `id` where they have one, else as they are stored.

    The key of an entry is its split and its position in the records.
    """
    with reading(name, place):
        records = ((position, source[position]) for position in range(len(source)))
        found = [(record.get("id", b""), position, int(record[label])) for position, record in records]
        ids = [key for key, _, _ in found]
        if any(ids) and len(set(ids)) != len(ids):
            raise ValueError(f"{len(set(ids))} different {split} images where {len(ids)} are announced")
    if unlabelled := sum(not 0 <= number < num_classes for _, _, number in found):
        raise UserError(f"{name} has {unlabelled:,} images without a class in its split {split}: choose another set")
    if all(isinstance(key, bytes) for key in ids):
        found.sort(key=lambda each: each[0])  # tfds stores them shuffled
    return [Entry(f"{name}: {split} {position}", (split, position), number) for _, position, number in found]


@contextlib.contextmanager
def silent(progress: bool = False) -> Iterator[None]:
    """Keeps tfds from printing about local data, progress, and packages that are not there."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    if not progress:
        tfds.disable_progress_bar()
    errors = sys.stderr if progress else io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            yield
    finally:
        tfds.enable_progress_bar()
        log.setLevel(level)


@contextlib.contextmanager
def reading(name: str, place: Path) -> Iterator[None]:
    """Says that records are damaged where they cannot be read: Riegeli, protobuf and tfds each raise their own."""
    try:
        yield
    except Exception as error:
        way = " (add `--archive PATH` where there is no network)." if name in CIFAR else ", after removing that folder."
        way = (
            f"Prepare it again: `{command_line('prepare', name, '--replace', '--data-dir', place.parent.parent)}`{way}"
        )
        raise UserError(f"The records in {place} are damaged: {shortened(error)}.\n{way}") from error


def missing(name: str, data_dir: Path, reason: str) -> UserError:
    """The error for a set that is not there and cannot be downloaded."""
    way = "Run again with network access"
    if name in CIFAR:
        command = command_line("prepare", name, "--archive", "PATH", "--data-dir", data_dir)
        way += f", import the official archive with `{command}`, or train on the bundled digits with "
        way += "`--config=configs/digits.py`."
    return UserError(f"The data set {name} is not in {data_dir} and cannot be downloaded ({reason}).\n{way}")


def cannot(name: str, data_dir: Path, error: Exception) -> UserError:
    """The error for a set whose builder fails in a way of its own."""
    if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
        folder = name.removeprefix(TFDS).split(":")[0].split("/")[0]
        return UserError(
            f"{name}: its builder in tensorflow-datasets needs TensorFlow, which is not installed\n"
            f"on a machine with TensorFlow run `{command_line('prepare', name, '--data-dir', 'DIR')}`, "
            f"copy DIR/{folder} to {data_dir}"
        )
    said = f"{type(error).__name__}: {shortened(error)}"
    return UserError(f"{name} cannot be prepared: {said}\nchoose another set, or give a folder or .npz file")
