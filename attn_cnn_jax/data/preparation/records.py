"""Writes pictures as a tfds data set: one ArrayRecord file per split, record n is picture n."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


class Moments:
    """Sums over pixels, exact in whole numbers, so that they do not depend on the order of the pictures."""

    def __init__(self, channels: int):
        """Starts with no picture of so many channels."""
        self.count, self.sums, self.squares = 0, np.zeros(channels, np.int64), np.zeros(channels, np.int64)

    def add(self, pixels: np.ndarray) -> None:
        """Adds a picture, `(H, W, C)` uint8."""
        values = pixels.reshape(-1, pixels.shape[2]).astype(np.int64)
        self.count += len(values)
        self.sums += values.sum(axis=0)
        self.squares += (values**2).sum(axis=0)

    def result(self) -> tuple[list[float], list[float]]:
        """Returns mean and standard deviation (1 where it is 0) per channel, of values in [0, 1], to four digits."""
        mean = self.sums / self.count
        std = np.sqrt(np.maximum(self.squares / self.count - mean**2, 0))
        std = np.round(std / 255, 4)
        return np.round(mean / 255, 4).tolist(), np.where(std > 0, std, 1.0).tolist()


def features(shape: tuple[int, int, int], class_names: tuple[str, ...]) -> Any:
    """Returns the features of a record: `id`, `image` and `label`, as the data sets of the package have them."""
    import tensorflow_datasets as tfds

    image, label = tfds.features.Image(shape=shape), tfds.features.ClassLabel(names=class_names)
    return tfds.features.FeaturesDict({"id": tfds.features.Text(), "image": image, "label": label})


def file_template(folder: Path, split: str) -> Any:
    """Returns how tfds names the file of a split."""
    import tensorflow_datasets as tfds

    return tfds.core.ShardedFileTemplate(
        data_dir=tfds.core.Path(folder), dataset_name=folder.parent.name, split=split, filetype_suffix="array_record"
    )


def write_split(
    folder: Path,
    split: str,
    shape: tuple[int, int, int],
    class_names: tuple[str, ...],
    pictures: Iterable[tuple[int, np.ndarray]],
) -> tuple[int, int]:
    """Writes one ArrayRecord file; returns the number of its records and of their bytes."""
    from array_record.python.array_record_module import ArrayRecordWriter

    serialise = features(shape, class_names)
    # A group per record: reading one does not decompress its neighbours.
    writer = ArrayRecordWriter(
        str(file_template(folder, split).sharded_filepath(shard_index=0, num_shards=1)), "group_size:1"
    )
    count = size = 0
    try:
        for label, pixels in pictures:
            image = Image.fromarray(pixels.squeeze(2) if shape[2] == 1 else pixels)
            example = {"id": f"{split}_{count:09d}", "image": image, "label": label}
            record = serialise.serialize_example(serialise.encode_example(example))
            writer.write(record)
            count, size = count + 1, size + len(record)
    finally:
        writer.close()
    return count, size


def write_metadata(
    folder: Path, shape: tuple[int, int, int], class_names: tuple[str, ...], counts: dict[str, tuple[int, int]]
) -> None:
    """Writes the files by which tfds knows a data set, given the records and bytes of each split."""
    import tensorflow_datasets as tfds

    splits = [
        tfds.core.SplitInfo(
            name=split, shard_lengths=[count], num_bytes=size, filename_template=file_template(folder, split)
        )
        for split, (count, size) in counts.items()
    ]
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features(shape, class_names), split_infos=splits, check_data=False
    )
