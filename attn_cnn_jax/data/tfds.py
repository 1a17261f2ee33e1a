"""Sets of tensorflow-datasets without TensorFlow: CIFAR-10, CIFAR-100, and others by name as far as that goes.

A set that is prepared in the data folder is read, whoever prepared it, if its files are ArrayRecord. One that is not
there is prepared by its builder. Many of those read archives or encode images with TensorFlow: arrays are handed over
to Pillow instead, which writes the same PNG; for the rest the error says how to go on.
"""

import contextlib
import functools
import http.client
import importlib.resources.abc
import io
import logging
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.image_classification import cifar as stock

from attn_cnn_jax.data import cifar
from attn_cnn_jax.data.image_files import as_image, open_image
from attn_cnn_jax.data.own import SPLITS, Collection, Entry
from attn_cnn_jax.data.sets import TFDS, Source
from attn_cnn_jax.errors import UserError, command_line, shortened
from attn_cnn_jax.output import say

# tfds asks for this backport when it makes a builder, does not declare it, and Python has it itself since 3.11.
sys.modules.setdefault("importlib_resources", importlib.resources)

PROBE_SECONDS = 6  # with all imports the answer comes within 15 s, even where a firewall drops every packet


def of_archive(kind: Any) -> Any:
    """A builder of tfds for CIFAR that makes its records, names, ids and order from an archive, without TensorFlow."""

    class Cifar(kind, skip_registration=True):  # pyright: ignore
        name = kind.name
        url_infos = kind.url_infos  # sizes and checksums, which tfds looks for beside the file of a builder
        archive: cifar.Archive | None = None  # None: what it downloads

        def _info(self) -> tfds.core.DatasetInfo:
            info = super()._info()
            # tfds would ask the network for statistics of this data set, and leave a folder in $TMPDIR.
            info.initialize_from_bucket = lambda: None
            return info

        def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> Any:
            archive = self.archive or cifar.read(str(dl_manager.download(self._cifar_info.url)), self.name)
            features, keys = self.info.features, self._cifar_info.label_keys
            for key, names in zip(keys, archive.class_names, strict=True):
                features[key].names = list(names)

            def examples(split: str) -> Iterator[tuple[int, dict[str, Any]]]:
                pairs = zip(archive.images[split], archive.labels[split], strict=True)
                for index, (image, labels) in enumerate(pairs):
                    record = {"id": f"{split}_{index:05d}", "image": Image.fromarray(image)}
                    yield index, record | dict(zip(keys, map(int, labels), strict=True))

            return {split: examples(split) for split in archive.images}

    return Cifar


CIFAR = {"cifar10": of_archive(stock.Cifar10), "cifar100": of_archive(stock.Cifar100)}


def collect(source: Source, data_dir: Path, archive: cifar.Archive | None, replace: bool) -> Collection:
    """The images of `cifar10`, `cifar100`, or `tfds:NAME` such as `tfds:emnist/letters`.

    The records are prepared first if need be, those of CIFAR from an archive where one is given, with `replace` also
    if they are there. UserError where there is no such set, it has no classified images, or it cannot be used here.
    """
    name = source.name
    place = data_dir / name / str(stock.Cifar10.VERSION)
    if name in CIFAR and place.exists() and (replace or archive):
        if not replace:
            raise UserError(
                f"{place} is there already, perhaps from another archive.\n"
                "Add --replace to put this one in its place, or choose another --data-dir."
            )
        if archive is None:
            check_network(name, CIFAR[name].url_infos, data_dir)
        shutil.rmtree(place)
    with tfds_errors(name, data_dir):
        known = functools.partial(tfds.builder, name.removeprefix(TFDS))
        builder: Any = CIFAR.get(name, known)(data_dir=data_dir)
    image, label = feature_names(name, builder)
    if not Path(builder.data_path).exists():
        prepare(name, builder, image, data_dir, archive)
    found = [split for split in SPLITS if split in builder.info.splits]
    if "train" not in found:
        only = f"has no split train in {builder.data_path}, only {', '.join(found) or 'none'}"
        raise tfds_error(name, data_dir, f"{only}: it is not complete, or no set to train on")
    names = tuple(map(str.strip, builder.info.features[label].names))
    with tfds_errors(name, data_dir, f"the records in {builder.data_path} are damaged"):
        records = {split: records_of(builder, split, image) for split in found}
        splits = {split: entries_of(name, split, records[split], label, len(names)) for split in found}

    def read(entry: Entry, channels: int) -> Image.Image:
        split, position = entry.key
        with tfds_errors(name, data_dir, f"the records in {builder.data_path} are damaged"):
            file = io.BytesIO(records[split][position][image])
        return open_image(file, channels, None, size=source.image_size, name=entry.name)

    return Collection(names, splits, read)


def feature_names(name: str, builder: Any) -> tuple[str, str]:
    """Which features are the image, uint8, and its class; UserError where there is not one of each."""
    features, found = builder.info.features, []
    kinds: dict[str, Any] = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    for kind in (tfds.features.Image, tfds.features.ClassLabel):
        fits = [key for key, feature in kinds.items() if type(feature) is kind]
        found += [key for key in builder.info.supervised_keys or () if key in fits] or fits
    if len(found) != 2 or kinds[found[0]].np_dtype != np.uint8:
        held = [f"{key} ({type(feature).__name__}, {feature.np_dtype})" for key, feature in kinds.items()]
        held = ", ".join(held) or "no features"
        raise UserError(f"{name} is no set of images of uint8 with one class each: it has {held}")
    return found[0], found[1]


def prepare(name: str, builder: Any, image: str, data_dir: Path, archive: cifar.Archive | None) -> None:
    """Lets the set's builder download and write it as ArrayRecord; UserError where that fails, OSError."""
    from_network = archive is None and bool(builder.url_infos)
    if from_network:
        check_network(name, builder.url_infos, data_dir)
    if name in CIFAR:
        builder.archive = archive
    else:  # lets Pillow encode images that are arrays; tfds would do so with TensorFlow
        feature, encode = builder.info.features[image], builder.info.features[image].encode_example
        feature.encode_example = lambda x: encode(as_image(x) if getattr(x, "dtype", None) == np.uint8 else x)
    say(f"Downloading {name}" if from_network else f"Writing {builder.data_path}")
    config = tfds.download.DownloadConfig(try_download_gcs=False, force_checksums_validation=name in CIFAR)
    with tfds_errors(name, data_dir, progress=from_network and sys.stderr.isatty()):
        try:
            builder.download_and_prepare(
                file_format="array_record", download_dir=data_dir / "downloads", download_config=config
            )
        except Exception as error:
            if full := re.search(r"\w+\(\) failed: ([^;]+); writing", str(error)):  # ArrayRecord's writer, in C++
                raise OSError(0, full[1], str(builder.data_path)) from error
            raise


def check_network(name: str, urls: Any, data_dir: Path) -> None:
    """Raises UserError if the host of a set does not answer within seconds; tfds would try for minutes."""
    url = next(iter(urls))
    try:
        request = urllib.request.Request(url, method="HEAD")
        urllib.request.build_opener().open(request, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:  # a host that refuses HEAD is there
        pass
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = f"is not in {data_dir} and cannot be downloaded ({url}: {shortened(error)})"
        raise tfds_error(name, data_dir, why) from error


def records_of(builder: Any, split: str, image: str) -> Any:
    """The records of a split by position, images still encoded; an error unless they are whole ArrayRecord."""
    form = getattr(builder.info.file_format, "value", builder.info.file_format)
    if form not in ("array_record", None):
        raise ModuleNotFoundError(f"its files in {builder.data_path} are {form}", name="tensorflow")
    source = builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})
    if len(source) != (expected := builder.info.splits[split].num_examples):
        raise ValueError(f"{len(source)} {split} images where {expected} are announced")
    return source


def entries_of(name: str, split: str, records: Any, label: str, num_classes: int) -> list[Entry]:
    """The images of a split by split and position, in the order of their `id` where they have one."""
    each = ((position, records[position]) for position in range(len(records)))
    found = [(record.get("id", b""), position, int(record[label])) for position, record in each]
    if unlabelled := sum(not 0 <= number < num_classes for _, _, number in found):
        raise UserError(f"{name} has {unlabelled:,} images without a class in its split {split}: choose another set")
    if all(isinstance(each[0], bytes) for each in found):
        found.sort(key=lambda each: each[0])  # tfds stores them shuffled
    return [Entry(f"{name}: {split} {position}", (split, position), number) for _, position, number in found]


@contextlib.contextmanager
def tfds_errors(name: str, data_dir: Path, what: str = "", *, progress: bool = False) -> Iterator[None]:
    """Says what a set's builder or reader fails with: tfds, Riegeli, protobuf and code of the set raise their own.

    `what` is damaged where reading fails; without it an OSError passes, of a disk that is full. Else tfds prints
    nothing, of local data and packages that are not there, but for its progress where that is wanted.
    """
    log, errors = logging.getLogger("absl"), sys.stderr if progress else io.StringIO()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            yield
    except Exception as error:
        is_of_disk = isinstance(error, OSError) and error.errno is not None  # errors of downloads have no number
        if isinstance(error, UserError | MemoryError) or (is_of_disk and not what):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
            folder = name.removeprefix(TFDS).split(":")[0].split("/")[0]
            raise UserError(
                f"{name} needs TensorFlow, which is not installed: {shortened(error)}\non a machine with TensorFlow "
                f"run `{command_line('prepare', name, '--data-dir', 'DIR')}`, and copy DIR/{folder} to {data_dir}"
            ) from error
        what = f"cannot be used: {f'{what}, ' * bool(what)}{type(error).__name__}: {shortened(error)}"
        raise tfds_error(name, data_dir, what) from error
    finally:
        log.setLevel(level)


def tfds_error(name: str, data_dir: Path, what: str) -> UserError:
    """The error for a set that is not there or cannot be used, with ways on."""
    way = f"choose another set, or give a folder or .npz file; remove {data_dir}/SET to prepare it again"
    if name in CIFAR:
        command = command_line("prepare", name, "--replace", "--data-dir", data_dir)
        way = f"with network access run `{command}`; without, `{command} --archive PATH` with the official archive, or "
        way += "train on the bundled digits with `--config=configs/digits.py`"
    return UserError(f"{name} {what}\n{way}")
