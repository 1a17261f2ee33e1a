"""Builders of CIFAR-10 and CIFAR-100 that work without TensorFlow.

tfds's own builders extract, read and encode with `tf.io`. These keep their names, versions, features, ids and
order, so that `tfds.builder("cifar10")` reads what they prepared; only the two generator methods differ.
"""

import json

from PIL import Image
from tensorflow_datasets.image_classification import cifar

from attn_cnn_jax.data.preparation import archives as archive


class _WithoutTensorFlow:
    """Reads `archive.Archive` given as `content`, or the one that tfds downloads."""

    content = None

    def _info(self):
        info = super()._info()
        # tfds would look on the network for statistics of this data set, and leave a folder in $TMPDIR.
        info.initialize_from_bucket = lambda: None
        return info

    def _split_generators(self, dl_manager):
        content = self.content or archive.read(dl_manager.download(self._cifar_info.url), self.name)
        for key, names in zip(self._cifar_info.label_keys, content.class_names, strict=True):
            self.info.features[key].names = list(names)
        # Where the data came from stays beside it, in the folder that tfds moves into place when all is done.
        origin = {"sha256": content.sha256, "official": content.official, "layout": content.kind}
        (self.data_path / "archive.json").write_text(json.dumps(origin) + "\n")
        return {split: self._generate_examples(content, split) for split in ("train", "test")}

    def _generate_examples(self, content, split):
        pairs = zip(content.images[split], content.labels[split], strict=True)
        for index, (image, labels) in enumerate(pairs):
            record = {"id": f"{split}_{index:05d}", "image": Image.fromarray(image)}
            record |= zip(self._cifar_info.label_keys, map(int, labels), strict=True)
            yield index, record

    @property
    def url(self):
        """Where tfds downloads from."""
        return self._cifar_info.url


class Cifar10(_WithoutTensorFlow, cifar.Cifar10, skip_registration=True):
    """tfds's `cifar10`: features `id` (text), `image` uint8 (32, 32, 3), `label` 0 .. 9."""

    name = "cifar10"


class Cifar100(_WithoutTensorFlow, cifar.Cifar100, skip_registration=True):
    """tfds's `cifar100`: as `cifar10`, with `label` 0 .. 99 and `coarse_label` 0 .. 19."""

    name = "cifar100"
