"""Image classification sets of tensorflow-datasets by name, as far as they can be prepared without TensorFlow.

A set that lies prepared in the data folder is read, whoever prepared it, if its files are ArrayRecord. One that is not
there is prepared by its own builder of tfds. Many of those read archives or encode pictures with TensorFlow: pictures
are handed over to Pillow instead, which writes the same PNG; for the rest the error says how to go on.
"""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attn_cnn_jax.data.builders.collection import (
    SPLITS,
    Collection,
    Entry,
    check_class_names,
    random_ranks,
    split_note,
    split_off,
)
from attn_cnn_jax.data.pictures import Unreadable, to_channels
from attn_cnn_jax.data.preparation.network import failure_of
from attn_cnn_jax.data.preparation.quiet import quiet
from attn_cnn_jax.data.preparation.store import check_format
from attn_cnn_jax.errors import UserError, command_line, shortened

PREFIX = "tfds:"
READ_AT_ONCE = 1000


def collect(name: str, data_dir: Path, test_fraction: float, split_seed: int, *, download: bool = True) -> Collection:
    """Returns the pictures of a set of tfds, prepared first if need be.

    Args:
      name: of the set, after `tfds:`, such as `fashion_mnist` or `emnist/letters`.
      data_dir: where prepared data sets lie.
      test_fraction: part of each class that becomes the test split where the set has none, 0 to 1.
      split_seed: chooses which.
      download: False never uses the network.

    Raises:
      UserError: there is no such set, it holds no classified pictures, or it cannot be prepared here.
    """
    builder = find(name, data_dir)
    image, label = feature_names(name, builder)
    if not builder.is_prepared():
        prepare(name, builder, image, data_dir, download)
    label_feature = builder.info.features[label]
    names = tuple(map(str.strip, label_feature.names))
    check_class_names(names, PREFIX + name)
    splits, sources = {}, {}
    for split in SPLITS:
        if split in builder.info.splits:
            sources[split] = data_source(name, builder, split, image, data_dir)
            splits[split] = entries_of(name, split, sources[split], label, label_feature.num_classes)
    if "train" not in splits:
        raise UserError(
            f"{PREFIX}{name} has no split train, only {', '.join(builder.info.splits) or 'none'}: choose another"
        )
    note = ""
    if "test" not in splits:
        note = split_note(test_fraction, split_seed)
        ranks = random_ranks(len(splits["train"]), split_seed)
        splits["train"], splits["test"] = split_off(splits["train"], ranks, names, PREFIX + name, test_fraction)

    def open_picture(entry: Entry) -> Image.Image:
        split, position = entry.key
        try:
            picture = Image.open(io.BytesIO(sources[split][position][image]))
            picture.load()
            return picture
        except Exception as error:  # Riegeli and Pillow each raise their own on damaged records
            raise Unreadable(f"{entry.name} cannot be read as a picture: {shortened(error)}") from error

    shape = builder.info.features[image].shape

    def header(entry: Entry) -> tuple[int, int, int]:
        if None not in shape:
            return shape[0], shape[1], 1 if shape[2] == 1 else 3
        width, height = open_picture(entry).size
        return height, width, 1 if shape[2] == 1 else 3

    return Collection(names, splits, header, lambda entry, channels: to_channels(open_picture(entry), channels), note)


def find(name: str, data_dir: Path) -> Any:
    """Returns the builder of a set, also of one that tfds does not know but that lies prepared in the data folder."""
    import tensorflow_datasets as tfds

    if not re.fullmatch(r"[A-Za-z]\w*(/[\w+.-]+)?(:\d+\.\d+\.\d+)?", name):
        raise UserError(
            f"config.dataset.name={PREFIX + name!r}: allowed is tfds:NAME, tfds:NAME/CONFIG or either with :VERSION"
        )
    try:
        with silent():
            return tfds.builder(name, data_dir=data_dir)
    except ModuleNotFoundError as error:
        raise needs_tensorflow(name, data_dir) if error.name == "tensorflow" else cannot(name, error) from error
    except tfds.core.DatasetNotFoundError as error:
        said = "tensorflow-datasets knows no such set, and none of that name lies in"
        raise UserError(
            f"config.dataset.name={PREFIX + name!r}: {said} {data_dir}\nsee tensorflow.org/datasets/catalog"
        ) from error
    except Exception as error:  # builders run code of their own
        raise cannot(name, error) from error


def feature_names(name: str, builder: Any) -> tuple[str, str]:
    """Returns which features are the picture and its class; UserError where there is not one of each."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    kinds = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    supervised = builder.info.supervised_keys or ()
    found = []
    for kind in (tfds.features.Image, tfds.features.ClassLabel):
        fits = [key for key, feature in kinds.items() if type(feature) is kind]
        chosen = [key for key in supervised if key in fits] or fits
        if len(chosen) != 1:
            held = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in kinds.items()) or "no features"
            raise UserError(f"{PREFIX}{name} is no set of pictures with one class each: it has {held}")
        found.append(chosen[0])
    picture: Any = kinds[found[0]]
    if picture.np_dtype != np.uint8:
        raise UserError(f"{PREFIX}{name} has pictures of {np.dtype(picture.np_dtype)}: allowed is uint8")
    return found[0], found[1]


def prepare(name: str, builder: Any, image: str, data_dir: Path, download: bool) -> None:
    """Lets the set's own builder download and write it as ArrayRecord; UserError where that fails."""
    import requests
    import tensorflow_datasets as tfds

    urls = list(builder.url_infos)
    if urls and not download:
        raise UserError(f"{PREFIX}{name} is not in {data_dir}, and downloading is switched off")
    if urls:
        check_answers(name, urls[0])
    hand_to_pillow(builder.info.features[image])
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        with silent():
            builder.download_and_prepare(
                file_format="array_record", download_dir=data_dir / "downloads", download_config=config
            )
    except ModuleNotFoundError as error:
        raise needs_tensorflow(name, data_dir) if error.name == "tensorflow" else cannot(name, error) from error
    except (requests.RequestException, tfds.download.DownloadError) as error:
        raise UserError(
            f"{PREFIX}{name} cannot be downloaded: {shortened(error)}\nrun again with network access"
        ) from error
    except OSError:
        raise
    except Exception as error:  # builders run code of their own
        raise cannot(name, error) from error


def check_answers(name: str, url: str) -> None:
    """Raises UserError if the host of a URL does not answer within seconds; tfds would try for minutes."""
    if failure := failure_of(url):
        raise UserError(f"{PREFIX}{name} cannot be downloaded ({url}: {failure})\nrun again with network access")


def hand_to_pillow(feature: Any) -> None:
    """Lets Pillow encode pictures that are arrays; tfds would do so with TensorFlow."""
    encode = feature.encode_example

    def encode_example(picture: Any) -> Any:
        if isinstance(picture, np.ndarray) and picture.dtype == np.uint8:
            picture = Image.fromarray(picture.squeeze(2) if picture.shape[2] == 1 else picture)
        return encode(picture)

    feature.encode_example = encode_example


def data_source(name: str, builder: Any, split: str, image: str, data_dir: Path) -> Any:
    """Returns the records of a split by position, pictures still encoded; UserError unless they are ArrayRecord."""
    import tensorflow_datasets as tfds

    check_format(
        builder,
        f"{PREFIX}{name} lies in {data_dir}",
        f"on a machine with TensorFlow prepare it as ArrayRecord in another folder, "
        f"`{command_line('prepare', PREFIX + name, '--data-dir', 'DIR')}`, and copy DIR",
    )
    try:
        with silent():
            return builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})
    except Exception as error:  # Riegeli, protobuf and tfds each raise their own on damaged files
        raise cannot(name, error) from error


def entries_of(name: str, split: str, source: Any, label: str, num_classes: int) -> list[Entry]:
    """Returns the pictures of a split, ordered by their `id` where they have one, else as they are stored."""
    found = []
    for start in range(0, len(source), READ_AT_ONCE):
        positions = range(start, min(start + READ_AT_ONCE, len(source)))
        for position, record in zip(positions, source.__getitems__(positions), strict=True):
            found.append((record.get("id", b""), position, int(record[label])))
    if unlabelled := sum(not 0 <= number < num_classes for _, _, number in found):
        raise UserError(
            f"{PREFIX}{name} has {unlabelled:,} pictures without a class in its split {split}: choose another set"
        )
    if all(isinstance(key, bytes) for key, _, _ in found):
        found.sort(key=lambda each: each[0])
    return [Entry(f"{PREFIX}{name}: {split} {position}", (split, position), number) for _, position, number in found]


@contextlib.contextmanager
def silent():
    """Keeps tfds from printing about downloads, progress, and TensorFlow that is not there."""
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        yield


def needs_tensorflow(name: str, data_dir: Path) -> UserError:
    """Returns the error for a set whose builder calls TensorFlow."""
    return UserError(
        f"{PREFIX}{name}: its builder in tensorflow-datasets needs TensorFlow, which is not installed\n"
        f"on a machine with TensorFlow run `{command_line('prepare', PREFIX + name, '--data-dir', 'DIR')}`, "
        f"copy DIR/{name.split(':')[0].split('/')[0]} to {data_dir}"
    )


def cannot(name: str, error: Exception) -> UserError:
    """Returns the error for a set whose builder or files fail in a way of their own."""
    said = f"{type(error).__name__}: {shortened(error)}"
    return UserError(
        f"{PREFIX}{name} cannot be prepared or read: {said}\nchoose another set, or give a folder or .npz file"
    )
