"""Test images that a content model is looked at with, and its attention to them, batch by batch."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.config import network, spec_of
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import OWN, Dataset, Fingerprint, Split, differences, fingerprint, source_of
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.runs.run import Run

log = logging.getLogger(__name__)

AVERAGED = 100  # test images that attention is averaged over, or all where there are fewer
BYTES_PER_BATCH = 2**28  # of attention in float32, all layers together


def dataset_of(run: Run, data_dir: str | Path | None = None) -> Dataset:
    """Returns the data set of a run, from `data_dir` or else from where the run had it.

    UserError if it is not prepared there: who only looks prepares nothing; or has classes that the run does not know.
    """
    if data_dir and not Path(data_dir).expanduser().is_dir():
        raise UserError(f"--data-dir={data_dir}: there is no such folder")
    dataset = run.config.dataset
    source, places = source_of(dataset), [data_dir] if data_dir else [dataset.data_dir, None]
    found = next((place for place in places if sources.folder_of(source, place or None).exists()), places[0])
    return in_classes_of(run.config, run.data, sources.read(source, found or None))


def in_classes_of(config: ConfigDict, trained_on: Fingerprint | None, dataset: Dataset) -> Dataset:
    """Returns a data set with a run's labels and names of classes, of which some may be missing since, none be new.

    Labels of the data that it was trained on, and of sets that number their classes themselves, are right as they are,
    whatever a configuration calls them; others go by name. UserError where a name is not the run's.
    """
    count, names, here = config.model.num_classes, spec_of(config).class_names, dataset.spec.class_names
    index = list(range(dataset.spec.num_classes))
    are_named_otherwise = names and here and names != here and config.dataset.name in OWN
    if are_named_otherwise and (not trained_on or differences(trained_on, fingerprint(dataset))):
        index = [names.index(name) if name in names else count for name in here]
    if max(index) >= count:
        classes = f"{listed(here) or len(index)}; of the run they are {listed(names) or count}"
        raise UserError(f"classes of {dataset.spec.name} are {classes}\ngive the data that the run was trained on")
    relabelled = np.array(index, np.int32)
    splits = {name: split._replace(labels=relabelled[split.labels]) for name, split in dataset.splits.items()}
    spec = dataclasses.replace(dataset.spec, num_classes=count, class_names=names or here)
    return dataset._replace(spec=spec, **splits)


def load_dataset(run: Run, data_dir: str | Path | None = None) -> Dataset:
    """Returns the data set of a run, see `dataset_of`; warns in the log if the run was trained on other data."""
    dataset = dataset_of(run, data_dir)
    if different := other_data(run, dataset):
        log.warning("%s", different)
    return dataset


def other_data(run: Run, dataset: Dataset) -> str:
    """Returns what is not as in the data that the run was trained on; no text where nothing is, or it is not known."""
    different = differences(run.data, fingerprint(dataset)) if run.data else ""
    return f"{run.config.dataset.name} is not the data that the run was trained on: {different}" if different else ""


def images_at(
    run: Run, indices: Sequence[int], data_dir: str | Path | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Returns test images `(n, H, W, C)` by index from 0, their labels `(n,)`, and the names of all classes.

    UserError if the data set is not there, or has no such image.
    """
    dataset = load_dataset(run, data_dir)
    total = len(dataset.test.labels)
    if wrong := [index for index in indices if not 0 <= index < total]:
        raise UserError(f"image {wrong[0]}: the test split of {dataset.spec.name} has 0 to {total - 1}")
    found, labels = dataset.test.at(list(indices))
    return found, labels, dataset.spec.class_names


def first_images(
    run: Run, count: int | None = None, data_dir: str | Path | None = None, usual: int = AVERAGED
) -> Split:
    """Returns the first `count` images of the test split; with None `usual`, or all where there are fewer.

    UserError if the data set is not there, or has fewer test images.
    """
    dataset = load_dataset(run, data_dir)
    count = min(usual, len(dataset.test.labels)) if count is None else count
    check_count(dataset, count)
    return dataset.test.at(np.arange(count))


def check_count(dataset: Dataset, count: int, least: int = 1) -> None:
    """Raises UserError unless a data set has so many test images."""
    total = len(dataset.test.labels)
    if not least <= count <= total:
        has = f"the test split of {dataset.spec.name} has {total}"
        raise UserError(f"{count} images: {has}; allowed is {least} to {total}")


def averaged_over(run: Run, asked: int | None, data_dir: str | Path | None = None) -> int:
    """Returns how many test images content is averaged over: those asked for, or `AVERAGED`."""
    if asked is not None or not reads_images(run):
        return asked or AVERAGED
    return min(AVERAGED, len(dataset_of(run, data_dir).test.labels))


def reads_images(run: Run) -> bool:
    """Returns whether the run's attention depends on the image; False also for networks without attention."""
    return run.config.model.name == "attention" and run.model.depends_on_content


def attention_batches(
    run: Run, num_images: int | None = None, data_dir: str | Path | None = None
) -> Iterator[list[np.ndarray]]:
    """Yields the attention of all layers, `(b, h, i, j, k, l)` each, to some of the first test images at a time.

    A position-only network counts as one image and needs no data.
    """
    if not reads_images(run):
        yield [layer[None] for layer in run.attention()]
        return
    images = first_images(run, num_images, data_dir).images
    per_image = 4 * sum(network.heads_by_layer(run.config.model)) * int(np.prod(grid(run))) ** 2
    batch_size = max(1, BYTES_PER_BATCH // per_image)
    for start in range(0, len(images), batch_size):
        yield run.attention(images[start : start + batch_size])


def mean_attention(run: Run, num_images: int | None = None, data_dir: str | Path | None = None) -> list[np.ndarray]:
    """Returns attention averaged over the first test images, one `(h, i, j, k, l)` per layer.

    In float64 where it depends on the image, else `Run.attention()` itself: a copy in float64 would take twice its
    memory, gigabytes for large grids.
    """
    if not reads_images(run):
        return run.attention()
    sums, count = None, 0
    for layers in attention_batches(run, num_images, data_dir):
        batch = [layer.sum(axis=0, dtype=np.float64) for layer in layers]
        sums = batch if sums is None else [np.add(a, b, out=a) for a, b in zip(sums, batch, strict=True)]
        count += len(layers[0])
    return [np.divide(layer, count, out=layer) for layer in sums or ()]


def grid(run: Run) -> tuple[int, int]:
    """Returns rows and columns of the pixels that attention works on: the image's over the down-sampling."""
    run.attention_network()  # UserError for a network without
    return network.grid(run.config.model)


def centre(run: Run) -> tuple[int, int]:
    """Returns the query pixel in the middle, the least touched by the border."""
    height, width = grid(run)
    return height // 2, width // 2
