"""Numbers by class, from a confusion matrix counted by hand."""

import numpy as np

from attn_cnn_jax.runs import evaluate, metrics
from attn_cnn_jax.runs.by_class import ByClass, confusion

LABELS = np.array([0, 0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 1, 0, 0])


def test_a_confusion_matrix_and_what_follows_from_it():
    """The fourth class has no images: it counts for nothing."""
    matrix = confusion(PREDICTED, LABELS, 4)
    assert matrix.tolist() == [[2, 2, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    found = ByClass(3, 7, 0.0, None, matrix, ("a", "b", "c", "d"))
    assert found.balanced_accuracy == (2 / 4 + 1 / 2 + 0) / 3
    rows = found.by_class
    assert rows[0] == {"class": "a", "right": 2, "count": 4, "accuracy": 0.5, "taken_for": "b", "times": 2}
    assert rows[2] == {"class": "c", "right": 0, "count": 1, "accuracy": 0.0, "taken_for": "a", "times": 1}
    assert rows[3] == {"class": "d", "right": 0, "count": 0, "accuracy": None, "taken_for": None, "times": 0}


def test_a_network_that_knows_one_class_of_two_is_no_better_than_chance():
    labels = (np.arange(200) % 20 == 0).astype(int)
    matrix = confusion(np.zeros(200, int), labels, 2)
    found = ByClass(190, 200, 0.0, None, matrix)
    assert (found.accuracy, found.balanced_accuracy) == (0.95, 0.5)
    assert [row["class"] for row in found.by_class] == ["0", "1"]
    found = evaluate.total(iter([np.tile([1.0, 0.0], (100, 1))] * 2), labels)
    assert (found.accuracy, found.balanced) == (0.95, 0.5)
    record = {"right": 190, "count": 200, "accuracy": 0.95, "balanced": 0.5}
    assert metrics.accuracy_in_words(record) == "95.00% (190 of 200), mean of classes 50.00%"
    assert evaluate.balanced(np.ones(30, bool), np.arange(30) % 4) is None  # classes of 8 and 7 images
    assert evaluate.balanced(np.ones(4, bool), np.array([0, 0, 2, 2])) is None  # none of class 1
