"""The data set that needs no network: scikit-learn's bundled 8x8 handwritten digits, as a tfds builder.

The 1,797 pictures come in a fixed order. Of each class every fifth one is a test picture, the others train:
1,442 and 355, the latter with 34 to 36 a class. Pixel values 0 .. 16 are stored as
round(255 / 16 * value), so 16 becomes 255 and the 17 levels stay distinct.
"""

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

_DESCRIPTION = """
1,797 handwritten digits, 8x8 grey pixels, bundled with scikit-learn: the test set of the UCI Machine Learning
Repository's "Optical Recognition of Handwritten Digits". Every fifth picture of each class is in the test split.
"""


class Digits(tfds.core.GeneratorBasedBuilder):
    """Builder of the data set `digits`: features `id` (text), `image` uint8 (8, 8, 1), `label` 0 .. 9."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        info = tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
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
        # tfds would look on the network for statistics of this data set, and leave a folder in $TMPDIR.
        info.initialize_from_bucket = lambda: None
        return info

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples("train"), "test": self._generate_examples("test")}

    def _generate_examples(self, split):
        images, labels = pictures(split)
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield (
                index,
                {
                    "id": f"{split}_{index:05d}",
                    "image": Image.fromarray(image),  # tfds encodes NumPy pictures with TensorFlow, but not PIL's
                    "label": int(label),
                },
            )


def pictures(split):
    """Return the split "train" or "test": images uint8 (N, 8, 8) in 0 .. 255, labels int (N,)."""
    from sklearn.datasets import load_digits  # a second to import, needed only once: on preparing

    digits = load_digits()
    is_test = np.zeros(len(digits.target), bool)
    for digit in range(10):
        is_test[np.flatnonzero(digits.target == digit)[4::5]] = True
    chosen = is_test if split == "test" else ~is_test
    return np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8), digits.target[chosen]
