"""The one check of class labels, as arrays from anywhere: what is unambiguous is taken and said, the rest refused."""

import logging
from typing import Any

import numpy as np
from jaxtyping import Int32

from attn_cnn_jax.errors import UserError, shortened

log = logging.getLogger(__name__)


def class_numbers(labels: Any, count: int, num_classes: int, what: str = "labels") -> Int32[np.ndarray, " n"]:
    """Class numbers, from 0, of `count` images.

    Taken are integers `(n,)`, a column `(n, 1)` as Keras and MedMNIST have it, one-hot rows `(n, num_classes)`, and
    whole floating-point numbers in place of integers; the log says so of each but the first. Messages name `what`.

    Raises:
      UserError: for other shapes, another number of labels than images, no labels, and numbers that are no class.
    """
    allowed = f"allowed are integers from 0 to {num_classes - 1}, ({count},), a column or one-hot rows of them"
    try:
        values = np.asarray(labels)
    except (ValueError, TypeError) as error:
        raise UserError(f"{what} make no array ({shortened(error)}): {allowed}") from error
    if not count:
        raise UserError(f"there are no images: {what} need at least one")
    if not values.ndim or len(values) != count:
        raise UserError(f"{count} images and {what} of shape {values.shape}: {allowed}, one label per image")
    if values.dtype.kind not in "biuf" or (values.dtype.kind == "b" and values.ndim < 2):
        raise UserError(f"{what} are {values.dtype}: {allowed}")
    if values.ndim == 2 and values.shape[1] == 1:
        log.warning(f"{what}: a column {values.shape} is read as one label per image")
        values = values[:, 0]
    elif values.shape == (count, num_classes):
        if not (np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all()):
            raise UserError(f"{what} of shape {values.shape} are not one-hot, a single 1 in each row: {allowed}")
        log.warning(f"{what}: one-hot rows {values.shape} are read as class numbers")
        values = values.argmax(axis=1)
    if values.ndim != 1 or values.dtype.kind == "b":
        raise UserError(f"{what} are {values.dtype} of shape {values.shape}: {allowed}")
    if values.dtype.kind == "f":
        if not (np.isfinite(values) & (values == np.floor(values))).all():
            raise UserError(f"{what} have {values[(values != np.floor(values)) | ~np.isfinite(values)][0]}: {allowed}")
        log.warning(f"{what}: {values.dtype} without fractions are read as integers")
    if (wrong := (values < 0) | (values >= num_classes)).any():
        n = int(np.flatnonzero(wrong)[0])
        many = f"{wrong.sum():,} of {count:,} {what} are no class"
        advice = f"labels count from 0, and there are {num_classes} classes: each has a name, or an image"
        if values[n] < 0:
            advice = "leave out images without a class"
        raise UserError(f"{many}, the first {values[n]:g} at {n}: {allowed}\n{advice}")
    return values.astype(np.int32)
