"""The sets that fine-tuning is shown on, and the numbers that the documentation takes from its runs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attn_cnn_jax.data.sources import Split
from attn_cnn_jax.runs.directory import read_config
from benchmarks import fine_tuning
from benchmarks.kept import training_of

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "fine_tuning"


def test_a_set_has_the_first_pictures_of_its_classes_with_labels_from_0():
    images = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    split = Split(images, np.array([4, 1, 9, 4, 1, 9], np.int32))
    found = fine_tuning.chosen(split, fine_tuning.Set((1, 9), 3, 0), 3)
    np.testing.assert_array_equal(found.images[:, 0, 0, 0], [1, 2, 4])
    np.testing.assert_array_equal(found.labels, [0, 1, 0])
    larger = fine_tuning.chosen(split, fine_tuning.Set((1, 9), 3, 0, size=64), 3)
    np.testing.assert_array_equal(larger.images, np.repeat(np.repeat(found.images, 2, axis=1), 2, axis=2))


def test_a_set_whose_writing_is_interrupted_is_not_there(monkeypatch, tmp_path):
    images, labels = np.zeros((10, 32, 32, 3), np.uint8), np.arange(10, dtype=np.int32)
    dataset = SimpleNamespace(train=Split(images, labels), test=Split(images, labels), class_names=list("abcdefghij"))
    monkeypatch.setattr(fine_tuning.sources, "load", lambda *_: dataset)
    write = np.savez

    def interrupted(file, **arrays):
        write(file, images=arrays["images"])
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fine_tuning.make_sets(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(np, "savez", write)
    fine_tuning.make_sets(tmp_path, None)
    with np.load(tmp_path / "other_five.npz") as found:
        np.testing.assert_array_equal(found["class_names"], list("bdfhj"))


@pytest.mark.parametrize("row", fine_tuning.rows(KEPT), ids=lambda row: row["run"])
def test_the_page_says_what_the_runs_reached(row):
    page = (ROOT / "docs" / "experiments.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `{row['run']}` "))
    assert line.endswith(f"| {row['before']} | {row['after']} |".replace("|  |", "| |"))


def test_all_runs_are_kept():
    assert [row["run"] for row in fine_tuning.rows(KEPT)] == list(fine_tuning.RUNS)


@pytest.mark.parametrize("name", fine_tuning.RUNS)
def test_the_kept_runs_are_of_these_configurations(name):
    found, expected = map(training_of, (read_config(KEPT / name), fine_tuning.configured(fine_tuning.RUNS[name])))
    for key in ("num_classes", "image_shape"):  # of the data
        del found["model"][key], expected["model"][key]
    assert found == expected
