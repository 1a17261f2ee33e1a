"""Images for the page: of the run's data set, or else the drawings that come with the package."""

import base64
import io

import numpy as np

from attn_cnn_jax.analysis.test_images import check_count, load_dataset
from attn_cnn_jax.data.image_files import LabelledImage, as_image, drawings, fit
from attn_cnn_jax.data.sets import Dataset
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.run import Run


def from_dataset(dataset: Dataset, count: int, size: tuple[int, int]) -> list[LabelledImage]:
    """The first `count` test images, one of each class in turn, of the size (H, W)."""
    labels = dataset.test.labels
    check_count(dataset, count, least=0)
    earlier = np.zeros(len(labels), int)  # images of the same class before this one
    for label in np.unique(labels):
        earlier[labels == label] = np.arange(np.sum(labels == label))
    chosen = np.argsort(earlier, kind="stable")[:count]
    return [
        LabelledImage(fit(as_image(image), size), f"test {n}", dataset.spec.class_names[label])
        for n, image, label in zip(chosen, *dataset.test.at(chosen), strict=True)
    ]


def shown_images(
    run: Run, count: int, size: tuple[int, int], data_dir: str | None = None
) -> tuple[list[LabelledImage], Dataset | None, UserError | None]:
    """Test images to choose from and their data set; without it the drawings of this package, None, and why."""
    try:
        dataset = load_dataset(run, data_dir)
    except UserError as error:
        shape = (*size, run.config.model.image_shape[2])
        return drawings(run.class_names, shape) if count else [], None, error
    return from_dataset(dataset, count, size), dataset, None


def data_uri(pixels: np.ndarray) -> str:
    """A PNG of `(H, W, C)` uint8 that an <img> shows without a request."""
    file = io.BytesIO()
    as_image(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
