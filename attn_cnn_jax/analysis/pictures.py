"""The pictures that a content model is looked at with, and its attention to them, batch by batch."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import heads_by_layer
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import is_own, recipe_of
from attn_cnn_jax.data.fingerprint import differences, fingerprint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.load import Run

log = logging.getLogger(__name__)

BYTES_A_BATCH = 2**28  # of attention, all layers together


def first_pictures(run: Run, count: int, data_dir: str | Path | None = None) -> sources.Split:
    """The first pictures of the test split of a run's data set; warns in the log if the run was trained on other data.

    Args:
      count: how many.
      data_dir: where the data set lies, if not where the run had it.

    Raises:
      UserError: if the data set is not there, or has fewer test pictures.
    """
    dataset = dataset_of(run.config, data_dir)
    if different := differences(run.data or {}, fingerprint(dataset)):
        log.warning("%s is not the data that the run was trained on: %s", run.config.dataset.name, different)
    total = len(dataset.test.labels)
    if not 1 <= count <= total:
        raise UserError(f"{count} pictures: the test split of {dataset.spec.name} has {total}")
    return sources.Split(dataset.test.images[:count], dataset.test.labels[:count])


def dataset_of(config: ConfigDict, data_dir: str | Path | None = None, *, download: bool = True) -> sources.Dataset:
    """Returns the data set of a run, prepared if need be in `data_dir`, or else in the default folder.

    A folder that the run's configuration names, and data of the user's own, are only read: a run may come from somebody
    else.
    """
    named = config.dataset.data_dir or is_own(config.dataset.name)
    if not data_dir and named:
        return sources.read(recipe_of(config.dataset), config.dataset.data_dir or None)
    return sources.load_configured(config.dataset, data_dir, download=download)


def attention_batches(
    run: Run, num_images: int, data_dir: str | Path | None = None
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Attention of all layers, for a number of pictures at a time where it depends on them.

    Yields:
      How many pictures, and one array a layer, `(b, h, i, j, k, l)`. A position-only network counts as one
      picture and needs no data.
    """
    if run.config.model.name != "attention" or not run.model.depends_on_content:
        yield 1, [layer[None] for layer in run.attention()]
        return
    images = first_pictures(run, num_images, data_dir).images
    batch_size = max(1, BYTES_A_BATCH // attention_bytes(run))
    for start in range(0, num_images, batch_size):
        batch = images[start : start + batch_size]
        yield len(batch), run.attention(batch)


def mean_attention(run: Run, num_images: int, data_dir: str | Path | None = None) -> list[np.ndarray]:
    """Attention averaged over the first test pictures: one `(h, i, j, k, l)` a layer, as `attention_batches`."""
    sums, total = None, 0
    for count, layers in attention_batches(run, num_images, data_dir):
        means = [layer.sum(axis=0, dtype=np.float64) for layer in layers]
        sums = means if sums is None else [a + b for a, b in zip(sums, means, strict=True)]
        total += count
    return [layer / total for layer in sums or ()]


def grid(run: Run) -> tuple[int, int]:
    """Rows and columns of the pixels that attention works on: the picture's over the down-sampling."""
    if run.config.model.name != "attention":
        raise UserError(f"a {run.config.model.name} has no attention to show")
    height, width, _ = run.config.model.image_shape
    return height // run.config.model.downsample, width // run.config.model.downsample


def centre(run: Run) -> tuple[int, int]:
    """The query pixel in the middle, the least touched by the border."""
    height, width = grid(run)
    return height // 2, width // 2


def attention_bytes(run: Run) -> int:
    """Size of all layers' attention to one picture in float32."""
    pixels = int(np.prod(grid(run)))
    return 4 * sum(heads_by_layer(run.config.model)) * pixels**2
