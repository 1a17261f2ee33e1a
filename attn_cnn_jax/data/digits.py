"""Handwritten digits: scikit-learn's scans, and as many drawn as strokes, to train with.

How people draw with a mouse or a finger differs from pen on paper. Each drawn one is one of a few shapes with its
points moved at random, sheared and narrowed, drawn with a pen of random width and made an image as the scans were: a
bitmap four times as fine, of which squares of 4x4 are counted.
"""

import functools
import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from attn_cnn_jax.data.sets import SPECS, STROKES, Dataset, Split

# By digit: strokes with commas between them, smooth through points "column row" of a grid of 10 x 10.
SHAPES = (
    ("50 21 04 18 59 89 95 82 50", "60 20 05 29 69 95 60"),
    ("50 59", "22 50,50 59", "13 50,50 59,29 89", "04 60,60 69"),
    ("12 20 60 83 55 19,19 99", "02 30 81 75 39 06 38 99", "11 40 83 64 09,09 99"),
    ("10 60 82 44,44 86 69 08", "01 50 82 44 86 49 07", "00 90,90 44,44 87 49 08"),
    ("30 06,06 96,63 69", "60 06,06 96,60 69", "10 05,05 95,80 79"),
    ("90 10,10 04,04 53 96 59 08", "80 20,20 14,14 64 87 49 08", "80 20 14 65 87 49 09"),
    ("70 24 07 49 87 64 16", "60 13 07 49 88 55 17", "50 05 07 49 96 54 06"),
    ("00 90,90 39", "00 90,90 39,25 85", "01 30 90 54 39", "03 00,00 90,90 49", "00 80 55 29"),
    ("82 50 12 45 87 59 07 45 82", "50 22 54 82 50,54 16 59 96 54", "71 40 12 44 86 59 07 36 71"),
    ("82 50 12 34 72,82 89", "83 50 13 45 83,83 69", "82 50 12 35 83,82 87 49 18"),
)
JITTER, SHEAR = 0.09, 0.3  # the largest shift of a point and slant, of the height
NARROWEST = 0.45  # of the height, the widest is 1
WIDTHS = (1.0, 1.7)  # of the pen, in pixels
SIZE, FINE = 8, 4  # pixels of a side, and parts that one is cut into
FRAME = (6, 8)  # width and height of the box in the middle that a digit fills, as most scans do
SAMPLES = 32  # places along a stroke between two of its points


def digits(name: str) -> Dataset:
    """The 1,797 handwritten digits, 8x8 grey pixels, that come with scikit-learn, in its order.

    Every fifth image of each class is a test image. Values 0 .. 16 become round(255 / 16 * value). In
    "digits_and_strokes" as many training images, drawn as strokes, follow those.
    """
    # What `sklearn.datasets.load_digits` reads; to import scikit-learn takes two seconds.
    package: Any = importlib.util.find_spec("sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        values = np.loadtxt(file, delimiter=",")
    images = np.round(values[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    labels = values[:, -1].astype(np.int32)
    is_test = np.zeros(len(labels), bool)
    for digit in range(10):
        is_test[np.flatnonzero(labels == digit)[4::5]] = True
    train, test = Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test])
    if name == STROKES.name:
        train = Split(*map(np.concatenate, zip(train, drawn(len(train.labels)), strict=True)))
    return Dataset(train, test, SPECS[name])


def smooth(points: Float[np.ndarray, "n b 2"], *, is_closed: bool) -> Float[np.ndarray, "m b 2"]:
    """Returns places along Catmull-Rom splines through the points of each; smooth where they close."""
    first, last = (points[-2], points[1]) if is_closed else (2 * points[0] - points[1], 2 * points[-1] - points[-2])
    points = np.concatenate([[first], points, [last]])[:, None]
    a, b, c, d = (points[n : len(points) - 3 + n] for n in range(4))
    t = np.arange(SAMPLES + 1)[:, None, None] / SAMPLES
    spline = b + t / 2 * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    return spline.reshape(-1, *spline.shape[2:])


def places(shape: str, random: Float[np.ndarray, "b r"], widths: Float[np.ndarray, " b"]) -> Float[np.ndarray, "m b 2"]:
    """Returns where pens of these widths, in pixels, go, (column, row), in pixels from the middle of each image."""
    (shear, aspect), moves = random.T[:2], random[:, 2:]
    names = sorted(set(shape.replace(",", " ").split()))
    moved = {
        name: np.array([int(name[0]), int(name[1])]) / 9 + JITTER * (2 * moves[:, 2 * n : 2 * n + 2] - 1)
        for n, name in enumerate(names)
    }
    lines = [line.split() for line in shape.split(",")]
    smoothed = [smooth(np.stack([moved[name] for name in line]), is_closed=line[0] == line[-1]) for line in lines]
    at = np.concatenate(smoothed)
    columns = (NARROWEST + (1 - NARROWEST) * aspect) * at[..., 0] - SHEAR * (2 * shear - 1) * at[..., 1]
    at = np.stack([columns, at[..., 1]], axis=-1)
    low, high = at.min(axis=0), at.max(axis=0)
    scales = ((np.array(FRAME) - widths[:, None]) / np.maximum(high - low, 1e-9)).min(axis=1, keepdims=True)
    return (at - (low + high) / 2) * scales


def thick(bitmaps: Bool[np.ndarray, "n h w"], widths: Float[np.ndarray, " n"]) -> Bool[np.ndarray, "n h w"]:
    """Returns bitmaps in which everything is set that is within half a width, in their pixels, of what was set."""
    found, reach = np.zeros_like(bitmaps), int(widths.max() / 2)
    height, width = bitmaps.shape[1:]
    padded = np.pad(bitmaps, ((0, 0), (reach, reach), (reach, reach)))
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            moved = padded[:, reach + row :, reach + column :][:, :height, :width]
            found |= moved & (row**2 + column**2 <= widths**2 / 4)[:, None, None]
    return found


@functools.cache
def drawn(count: int) -> Split:
    """Returns so many digits, uint8 of shape `(count, 8, 8, 1)`; the same on every machine."""
    # NumPy keeps the raw output of a bit generator for ever, but not what its distributions make of it.
    random = np.random.PCG64(0).random_raw((count, 64)) / 2.0**64
    labels = np.arange(count, dtype=np.int32) % 10
    widths = WIDTHS[0] + (WIDTHS[1] - WIDTHS[0]) * random[:, 0]
    side = SIZE * FINE
    bitmaps = np.zeros((count, side, side), bool)
    for label, shapes in enumerate(SHAPES):
        which = (len(shapes) * random[:, 1]).astype(int)
        for n, shape in enumerate(shapes):
            images = np.flatnonzero((labels == label) & (which == n))
            at = places(shape, random[images, 2:], widths[images]) * FINE + side / 2
            columns, rows = np.moveaxis(np.clip(at.astype(int), 0, side - 1), 2, 0)
            bitmaps[images, rows, columns] = True
    counts = thick(bitmaps, widths * FINE).reshape(count, SIZE, FINE, SIZE, FINE).sum(axis=(2, 4))
    return Split(np.round(counts * (255 / FINE**2)).astype(np.uint8)[..., None], labels)
