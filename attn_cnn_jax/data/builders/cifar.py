"""Builders of CIFAR-10 and CIFAR-100 that work without TensorFlow.

The builders of tfds extract, read and encode with `tf.io`. These keep their names, versions, features, ids and order,
so that `tfds.builder("cifar10")` reads what they prepared; only where the examples come from differs.
"""

import json
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.image_classification import cifar

from attn_cnn_jax.data.preparation import archives


class Cifar10(cifar.Cifar10, skip_registration=True):
    """tfds's `cifar10`: features `id` (text), `image` uint8 (32, 32, 3), `label` 0 .. 9.

    Attributes:
      archive: what the examples are generated from; None downloads it.
    """

    name = "cifar10"
    archive: archives.Archive | None = None

    def _info(self) -> tfds.core.DatasetInfo:
        info = super()._info()
        # tfds would ask the network for statistics of this data set, and leave a folder in $TMPDIR.
        info.initialize_from_bucket = lambda: None
        return info

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> Any:
        archive = self.archive or archives.read(str(dl_manager.download(self.url)), self.name)
        features: Any = self.info.features
        for key, names in zip(self._cifar_info.label_keys, archive.class_names, strict=True):
            features[key].names = list(names)
        # tfds moves this folder into place when it is complete, and the origin with it.
        origin = {"sha256": archive.sha256, "official": archive.official, "layout": archive.kind}
        (self.data_path / "archive.json").write_text(json.dumps(origin) + "\n")
        return {split: self.examples(archive, split) for split in ("train", "test")}

    def examples(self, archive: archives.Archive, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the key and the features of each picture of the split `train` or `test`."""
        pairs = zip(archive.images[split], archive.labels[split], strict=True)
        for index, (image, labels) in enumerate(pairs):
            record = {"id": f"{split}_{index:05d}", "image": Image.fromarray(image)}
            record |= zip(self._cifar_info.label_keys, map(int, labels), strict=True)
            yield index, record

    @property
    def url(self) -> str:
        """Where tfds downloads the archive from."""
        return self._cifar_info.url


class Cifar100(Cifar10, cifar.Cifar100, skip_registration=True):
    """tfds's `cifar100`: as `cifar10`, with `label` 0 .. 99 and `coarse_label` 0 .. 19."""

    name = "cifar100"
