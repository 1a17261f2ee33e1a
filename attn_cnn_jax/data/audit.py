"""What `prepare` says of images of one's own: what is left of each kind of file, and which images are identical."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool
from ml_collections import ConfigDict
from PIL import Image

from attn_cnn_jax.data.image_files import FULL_RANGE
from attn_cnn_jax.data.mirror import line_on_mirroring
from attn_cnn_jax.data.sets import Split
from attn_cnn_jax.errors import listed

FEW_LEVELS = 128  # of 256, below which 16 bits probably hold fewer: 10, 12 or 14
FEW_STEPS = 10  # per epoch
NAMED = 3  # identical images that a line names


@dataclasses.dataclass
class Kind:
    """Files of one kind: how many, the smallest and largest value in them, and the 8-bit levels they are read as."""

    count: int = 0
    low: int = FULL_RANGE[1]
    high: int = 0
    levels: Bool[np.ndarray, "256"] = dataclasses.field(default_factory=lambda: np.zeros(256, bool))


def add(kinds: dict[str, Kind], image: Image.Image) -> None:
    """Counts an image of `open_image`."""
    if "stored" in image.info:
        kind = kinds.setdefault(image.info["stored"], Kind())
        low, high = image.info["range"]
        kind.count, kind.low, kind.high = kind.count + 1, min(kind.low, low), max(kind.high, high)
        kind.levels |= np.reshape(image.histogram(), (-1, 256)).any(axis=0)


def lines_on_levels(kinds: Mapping[str, Kind], value_range: tuple[int, int]) -> list[str]:
    """A line per kind of file: its values, and how many levels are left of them."""
    found = []
    for name, kind in sorted(kinds.items()):
        line = (
            f"{name}, {kind.count:,} images: values {kind.low} to {kind.high}, {kind.levels.sum()} of 256 levels left"
        )
        if name.startswith("16") and "grey" in name:
            if kind.low < value_range[0] or kind.high > value_range[1]:
                line += f"; values beyond {value_range[0]} to {value_range[1]}, config.dataset.range, are cut"
            elif kind.levels.sum() < FEW_LEVELS:
                line += "; where files hold fewer bits, such as 10, set --range=0-1023 (config.dataset.range=(0,1023))"
        found.append(line)
    return found


def lines_on_training(config: ConfigDict, train: Split) -> list[str]:
    """Lines on what augmentation and the batch size do to training images of one's own."""
    batch_size, count = config.train.batch_size, len(train.labels)
    lines = [line_on_mirroring(train)] if config.augment.flip else []
    steps, left = divmod(count, batch_size)
    if left > count / 10 or steps < FEW_STEPS:
        each = f"{steps} step{'s' * (steps != 1)} per epoch, {left} images left out of each"
        lines.append(f"{count:,} training images in batches of {batch_size}: {each}; see config.train.batch_size")
    return lines


def digest(pixels: np.ndarray) -> int:
    """64 bits that tell an image from others."""
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=8).digest(), "little")


def lines_on_identical(seen: Mapping[int, Sequence[tuple[str, int, str]]]) -> list[str]:
    """A line on images, equal once resized, that are in several splits, and one on those in several classes.

    By the `digest` of its pixels, each has its split, class and name.
    """
    found = []
    for place, what, advice in (
        (0, "in more than one split", "remove one of each: else the test counts what was trained on"),
        (1, "under more than one class", "remove the wrong one of each"),
    ):
        pairs = []
        for first, *others in seen.values():
            if other := next((each for each in others if each[place] != first[place]), None):
                pairs.append(f"{first[2]} = {other[2]}")
        if pairs:
            found.append(f"{len(pairs):,} identical images are {what}: {listed(pairs, NAMED)}; {advice}")
    return found
