"""attn-cnn compare: one line per configuration, seeds with mean and deviation, training time, the figure."""

import json
import re
import shutil
import statistics

import pytest

from attn_cnn_jax.analysis.figures import curves
from attn_cnn_jax.analysis.flops import count_parameters
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.runs.directory import read_config

ACCURACIES = (0.5, 0.6, 0.9)


@pytest.fixture
def runs(quadratic_run, tmp_path):
    """Three seeds of one configuration, with the accuracies above."""
    workdirs = [shutil.copytree(quadratic_run, tmp_path / f"seed_{n}") for n in range(3)]
    for n, (workdir, accuracy) in enumerate(zip(workdirs, ACCURACIES, strict=True)):
        edit(workdir, {"seed": n})
        train = {"split": "train", "loss": 1.0, "accuracy": 0.5, "epoch": 2}
        lines = [train | {"step": step, "images_per_second": rate} for step, rate in ((10, 100.0), (20, 50.0))]
        lines.append({"step": 20, "epoch": 2, "split": "test", "loss": 1 - accuracy, "accuracy": accuracy})
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return workdirs


def edit(workdir, changes):
    """Changes values of the configuration that a run was given."""
    config = json.loads((workdir / "config.json").read_text())
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    (workdir / "config.json").write_text(json.dumps(config))


@pytest.fixture
def compared(capsys):
    """`compared(*arguments)`: rows as dictionaries by header, whose cells at least two blanks separate; and errors."""

    def rows(*arguments):
        assert main(["compare", *map(str, arguments)]) == 0
        out, err = capsys.readouterr()
        header, *lines = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if "  " in line]
        return [dict(zip(header, line, strict=False)) for line in lines], err

    return rows


def test_seeds_of_a_configuration_share_a_line(runs, content_run, compared):
    (row, other), _ = compared(runs[0], content_run, runs[1], runs[2])
    mean, deviation = statistics.mean(ACCURACIES), statistics.stdev(ACCURACIES)
    assert row["run"] == f"{runs[0]} ... seed_2"
    assert row["seeds"] == "0, 1, 2"
    assert row["test accuracy"] == f"{mean:.2%} ± {deviation:.2%}"
    assert row["test loss"] == f"{1 - mean:.4f} ± {deviation:.4f}"
    assert row["parameters"] == f"{count_parameters(read_config(runs[0]).model):,}"
    assert row["training time"] == "0:00:30"  # 10 steps of 100 images at 100 per second, 10 at 50
    assert list(other.values())[:4] == [str(content_run), "0", "2", "60.00%"]


def test_each_seed_counts_once_and_is_named(runs, tmp_path, compared):
    """The deviation was that of the copies (case 06); a folder that --seeds made stands for its runs."""
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    (row,), err = compared(*runs[:2], copy, runs[1])
    honest = f"{statistics.mean(ACCURACIES[:2]):.2%} ± {statistics.stdev(ACCURACIES[:2]):.2%}"
    assert (row["seeds"], row["epoch"], row["test accuracy"]) == ("0, 1", "2", honest)
    assert f"{copy} has the same seed 0 as {runs[0]}: counted once" in err
    shutil.rmtree(copy)
    (row,), _ = compared(tmp_path)
    assert (row["run"], row["seeds"]) == (f"{runs[0]} ... seed_2", "0, 1, 2")


def test_what_may_differ_in_a_line_and_what_may_not(runs, compared):
    """Where metrics go and where data is read from are no configuration of their own; other images or rates are.

    Of the user's own images another `dataset.path` is another set of them.
    """
    for changes, lines in (
        ({"train": {"logger": "trackio"}, "dataset": {"feed": "stream", "data_dir": "elsewhere"}}, ["0, 1"]),
        ({"optimizer": {"learning_rate": 0.2}}, ["0", "1"]),
    ):
        edit(runs[1], changes)
        assert [row["seeds"] for row in compared(*runs[:2])[0]] == lines
    for run in runs[:2]:
        edit(run, {"optimizer": {"learning_rate": 0.1}, "dataset": {"name": "folder", "path": str(run)}})
    assert [row["seeds"] for row in compared(*runs[:2])[0]] == ["0", "1"]


def test_seeds_share_a_curve_with_a_band_of_one_deviation(runs, tmp_path, compared):
    compared(*runs, f"--out={tmp_path / 'figure'}")
    assert sorted(path.name for path in (tmp_path / "figure").iterdir()) == ["curves.png", "curves.svg"]
    assert f"{runs[0].parent.name} (3 seeds)" in (tmp_path / "figure" / "curves.svg").read_text()
    accuracy = curves.draw([runs]).axes[0]
    (band,) = [each for each in accuracy.collections if each.get_gid() == "0 test band"]
    heights = band.get_paths()[0].vertices[:, 1]
    mean, deviation = 100 * statistics.mean(ACCURACIES), 100 * statistics.stdev(ACCURACIES)
    assert (heights.min(), heights.max()) == pytest.approx((mean - deviation, mean + deviation))
    (line,) = [each for each in accuracy.lines if each.get_gid() == "0 test"]
    assert line.get_ydata() == pytest.approx([mean])


def test_the_mean_of_classes_stands_beside_the_accuracy_where_classes_are_unequal(runs, compared):
    (row,), _ = compared(*runs)
    assert "mean of classes" not in row
    for workdir, balanced in zip(runs, (0.4, 0.5, 0.6), strict=True):
        test = {"step": 20, "epoch": 2, "split": "test", "loss": 0.1, "accuracy": 0.9, "balanced": balanced}
        (workdir / "metrics.jsonl").write_text(json.dumps(test) + "\n")
    (row,), _ = compared(*runs)
    assert (row["test accuracy"], row["mean of classes"]) == ("90.00% ± 0.00%", "50.00% ± 10.00%")
