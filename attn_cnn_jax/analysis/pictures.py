"""Test pictures that a content model is looked at with, and its attention to them, batch by batch."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.config import network
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import Dataset, Split, differences, fingerprint, source_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.run import Run

log = logging.getLogger(__name__)

AVERAGED = 100  # test pictures that attention is averaged over, or all where there are fewer
BYTES_PER_BATCH = 2**28  # of attention, all layers together


class Chosen(NamedTuple):
    """Some pictures of a test split.

    Attributes:
      images: `(n, H, W, C)` uint8.
      labels: `(n,)`.
      class_names: `class_names[label]` is the name of a label.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]


def pictures_at(run: Run, indices: Sequence[int], data_dir: str | Path | None = None) -> Chosen:
    """Returns pictures of the test split of a run's data set.

    Args:
      run: the run.
      indices: which, from 0.
      data_dir: where the data set lies, if not where the run had it.

    Raises:
      UserError: if the data set is not there, or has no such picture.
    """
    dataset = load_dataset(run, data_dir)
    total = len(dataset.test.labels)
    if max(indices) >= total or min(indices) < 0:
        raise UserError(f"picture {max(indices)}: the test split of {dataset.spec.name} has 0 to {total - 1}")
    return Chosen(*dataset.test.at(list(indices)), dataset.class_names)


def averaged_over(run: Run, asked: int | None, data_dir: str | Path | None = None) -> int:
    """Returns how many test pictures content is averaged over: those asked for, or `AVERAGED`."""
    if asked is not None or not reads_pictures(run):
        return asked or AVERAGED
    return min(AVERAGED, len(dataset_of(run.config, data_dir).test.labels))


def first_pictures(run: Run, count: int | None = None, data_dir: str | Path | None = None) -> Split:
    """Returns the first pictures of the test split of a run's data set.

    Args:
      run: the run.
      count: how many; None for `AVERAGED`.
      data_dir: where the data set lies, if not where the run had it.

    Raises:
      UserError: if the data set is not there, or has fewer test pictures.
    """
    dataset = load_dataset(run, data_dir)
    total = len(dataset.test.labels)
    count = min(AVERAGED, total) if count is None else count
    if not 1 <= count <= total:
        raise UserError(f"{count} pictures: the test split of {dataset.spec.name} has {total}; allowed is 1 to {total}")
    return dataset.test.at(np.arange(count))


def dataset_of(config: ConfigDict, data_dir: str | Path | None = None) -> Dataset:
    """Returns the data set of a run, from `data_dir` or else from where the run had it.

    Raises:
      UserError: it is not prepared there; who only looks prepares nothing.
    """
    if data_dir and not Path(data_dir).expanduser().is_dir():
        raise UserError(f"--data-dir={data_dir}: there is no such folder")
    source, places = source_of(config.dataset), [data_dir] if data_dir else [config.dataset.data_dir, None]
    found = next((place for place in places if sources.is_prepared(source, place)), places[0])
    return sources.read(source, found or None)


def load_dataset(run: Run, data_dir: str | Path | None = None) -> Dataset:
    """Returns the data set of a run, see `dataset_of`; warns in the log if the run was trained on other data."""
    dataset = dataset_of(run.config, data_dir)
    if run.data and (different := differences(run.data, fingerprint(dataset))):
        log.warning("%s is not the data that the run was trained on: %s", run.config.dataset.name, different)
    return dataset


def reads_pictures(run: Run) -> bool:
    """Returns whether the run's attention depends on the picture; False also for networks without attention."""
    return run.config.model.name == "attention" and run.model.depends_on_content


def attention_batches(
    run: Run, num_images: int | None = None, data_dir: str | Path | None = None
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yields the attention of all layers, for a number of pictures at a time where it depends on them.

    Yields:
      How many pictures, and one array per layer, `(b, h, i, j, k, l)`. A position-only network counts as one
      picture and needs no data.
    """
    if not reads_pictures(run):
        yield 1, [layer[None] for layer in run.attention()]
        return
    for layers in attention_of(run, first_pictures(run, num_images, data_dir).images):
        yield len(layers[0]), layers


def attention_of(run: Run, images: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Yields the attention of a number of pictures at a time, one `(b, h, i, j, k, l)` per layer."""
    batch_size = max(1, BYTES_PER_BATCH // attention_bytes(run))
    for start in range(0, len(images), batch_size):
        yield run.attention(images[start : start + batch_size])


def mean_attention(run: Run, num_images: int | None = None, data_dir: str | Path | None = None) -> list[np.ndarray]:
    """Returns attention averaged over the first test pictures, one `(h, i, j, k, l)` per layer.

    In float64 where it depends on the picture, else `Run.attention()` itself: a copy in float64 would take twice its
    memory, gigabytes for large grids.
    """
    if not reads_pictures(run):
        return run.attention()
    return mean_over(run, first_pictures(run, num_images, data_dir).images)


def mean_over(run: Run, images: np.ndarray) -> list[np.ndarray]:
    """Returns attention that depends on the picture averaged over some, one `(h, i, j, k, l)` float64 per layer."""
    sums = None
    for layers in attention_of(run, images):
        batch = [layer.sum(axis=0, dtype=np.float64) for layer in layers]
        sums = batch if sums is None else [np.add(a, b, out=a) for a, b in zip(sums, batch, strict=True)]
    return [np.divide(layer, len(images), out=layer) for layer in sums or ()]


def grid(run: Run) -> tuple[int, int]:
    """Returns rows and columns of the pixels that attention works on: the picture's over the down-sampling."""
    if run.config.model.name != "attention":
        raise UserError(f"a {run.config.model.name} has no attention to show")
    return network.grid(run.config.model)


def centre(run: Run) -> tuple[int, int]:
    """Returns the query pixel in the middle, the least touched by the border."""
    height, width = grid(run)
    return height // 2, width // 2


def default_queries(run: Run) -> list[tuple[int, int]]:
    """Returns the query pixels of figures: the middle, as in Fig. 4 to 6; for content also one a quarter in (Fig. 7).

    The paper does not say which pixel figure 7 shows.
    """
    height, width = grid(run)
    return [centre(run)] + ([(height // 4, width // 4)] if run.model.depends_on_content else [])


def attention_bytes(run: Run) -> int:
    """Returns the size of all layers' attention to one picture in float32, in bytes."""
    pixels = int(np.prod(grid(run)))
    return 4 * sum(network.heads_by_layer(run.config.model)) * pixels**2
