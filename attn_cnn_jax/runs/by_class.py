"""What a network makes of each class: a confusion matrix, and what follows from it."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from attn_cnn_jax.runs.evaluate import Evaluation, mean_of_classes


def confusion(
    predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"], num_classes: int
) -> Int[np.ndarray, "k k"]:
    """Numbers of images by their class, the row, and the predicted class, the column."""
    pairs = np.asarray(labels, np.int64) * num_classes + np.asarray(predicted, np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


@dataclasses.dataclass(frozen=True)
class ByClass(Evaluation):
    """What a network makes of some images, and of those of each class."""

    confusion: Any = dataclasses.field(default=None, compare=False, repr=False)  # see `confusion`
    class_names: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)

    @property
    def balanced_accuracy(self) -> float:
        """Mean over classes that have images of the share of each that is right, 0 to 1."""
        return mean_of_classes(np.diag(self.confusion), self.confusion.sum(axis=1))

    @property
    def by_class(self) -> list[dict[str, Any]]:
        """A row per class: `class`, `right`, `count`, `accuracy` (None without images), the most frequent confusion.

        That is `taken_for`, the wrong class that most of its images get, and `times`; None and 0 where all are right.
        """
        names, rows = self.class_names or [str(k) for k in range(len(self.confusion))], []
        for k, (name, row) in enumerate(zip(names, self.confusion, strict=True)):
            right, count, wrong = int(row[k]), int(row.sum()), np.where(np.arange(len(row)) == k, 0, row)
            times = int(wrong.max())
            found = {"class": name, "right": right, "count": count, "accuracy": right / count if count else None}
            rows.append(found | {"taken_for": names[int(wrong.argmax())] if times else None, "times": times})
        return rows
