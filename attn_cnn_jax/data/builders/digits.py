"""The data set that needs no network: the 8x8 handwritten digits bundled with scikit-learn, as a tfds builder.

The 1,797 pictures have a fixed order. Every fifth picture of each class is a test picture: 1,442 train and 355 test,
34 to 36 of the latter per class. Pixel values 0 .. 16 are stored as round(255 / 16 * value), so that 16 becomes 255
and the 17 levels stay distinct.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Int, UInt8
from PIL import Image

DESCRIPTION = """
1,797 handwritten digits, 8x8 grey pixels, bundled with scikit-learn: the test set of the UCI Machine Learning
Repository's "Optical Recognition of Handwritten Digits". Every fifth picture of each class is in the test split.
"""


class Digits(tfds.core.GeneratorBasedBuilder):
    """Builder of the data set `digits`: features `id` (text), `image` uint8 (8, 8, 1), `label` 0 .. 9."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        info = tfds.core.DatasetInfo(
            builder=self,
            description=DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "id": tfds.features.Text(),
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(names=[str(digit) for digit in range(10)]),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        )
        # tfds would ask the network for statistics of this data set, and leave a folder in $TMPDIR.
        info.initialize_from_bucket = lambda: None
        return info

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        return {split: self._generate_examples(split) for split in ("train", "test")}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, (image, label) in enumerate(zip(*pictures(split), strict=True)):
            # tfds encodes NumPy pictures with TensorFlow, but not those of Pillow.
            yield index, {"id": f"{split}_{index:05d}", "image": Image.fromarray(image), "label": int(label)}


def pictures(split: str) -> tuple[UInt8[np.ndarray, "n H W"], Int[np.ndarray, " n"]]:
    """Returns the pictures, values 0 .. 255, and the labels of the split `train` or `test`."""
    from sklearn.datasets import load_digits  # takes a second to import and is needed once: to prepare

    digits: Any = load_digits()
    is_test = np.zeros(len(digits.target), bool)
    for digit in range(10):
        is_test[np.flatnonzero(digits.target == digit)[4::5]] = True
    chosen = is_test if split == "test" else ~is_test
    return np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8), digits.target[chosen]
