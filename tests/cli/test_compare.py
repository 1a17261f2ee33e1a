"""attn-cnn compare: one line per configuration, seeds with mean and deviation, training time, the figure."""

import dataclasses
import json
import re
import shutil
import statistics

import pytest

from attn_cnn_jax.analysis.figures import curves
from attn_cnn_jax.analysis.flops import count_parameters
from attn_cnn_jax.cli import compare
from attn_cnn_jax.cli.compare import training_seconds
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.runs.directory import read_config

ACCURACIES = (0.5, 0.6, 0.9)


@pytest.fixture
def runs(quadratic_run, tmp_path):
    """Three seeds of one configuration, with the accuracies above."""
    workdirs = [shutil.copytree(quadratic_run, tmp_path / f"seed_{n}") for n in range(3)]
    for n, (workdir, accuracy) in enumerate(zip(workdirs, ACCURACIES, strict=True)):
        config = json.loads((workdir / "config.json").read_text())
        (workdir / "config.json").write_text(json.dumps(config | {"seed": n}))
        train = {"step": 20, "epoch": 2, "split": "train", "loss": 1.0, "accuracy": 0.5, "images_per_second": 50.0}
        test = {"step": 20, "epoch": 2, "split": "test", "loss": 1 - accuracy, "accuracy": accuracy}
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (train, test)))
    return workdirs


def lines_of(capsys):
    """Header and rows as lists of cells, which at least two blanks separate."""
    return [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines() if line]


def test_seeds_of_a_configuration_share_a_line(runs, content_run, capsys):
    assert main(["compare", str(runs[0]), str(content_run), str(runs[1]), str(runs[2])]) == 0
    header, ours, other = lines_of(capsys)
    row = dict(zip(header, ours, strict=True))
    mean, deviation = statistics.mean(ACCURACIES), statistics.stdev(ACCURACIES)
    assert row["run"] == f"{runs[0]} ... seed_2"
    assert row["seeds"] == "0, 1, 2"
    assert row["test accuracy"] == f"{mean:.2%} ± {deviation:.2%}"
    assert row["test loss"] == f"{1 - mean:.4f} ± {deviation:.4f}"
    assert row["parameters"] == f"{count_parameters(read_config(runs[0]).model):,}"
    assert row["training time"] == "0:00:40"  # 20 steps of 100 pictures, 50 per second
    assert other[:4] == [str(content_run), "0", "2", "60.00%"]


def test_each_seed_counts_once_and_is_named(runs, tmp_path, capsys):
    """The deviation was that of the copies (case 06); a folder that --seeds made stands for its runs."""
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    assert main(["compare", *map(str, [*runs[:2], copy, runs[1]])]) == 0
    out, err = capsys.readouterr()
    honest = f"{statistics.mean(ACCURACIES[:2]):.2%} ± {statistics.stdev(ACCURACIES[:2]):.2%}"
    (row,) = out.splitlines()[1:]
    assert re.split(r"\s{2,}", row)[1:4] == ["0, 1", "2", honest]
    assert f"{copy} has the same seed 0 as {runs[0]}: counted once" in err
    shutil.rmtree(copy)
    assert main(["compare", str(tmp_path)]) == 0
    assert [row[:2] for row in lines_of(capsys)[1:]] == [[f"{runs[0]} ... seed_2", "0, 1, 2"]]


def test_runs_with_other_settings_of_jax_are_not_pooled(runs, monkeypatch, capsys):
    load = compare.load_run

    def load_other(workdir):
        settings = {"JAX_THREEFRY_PARTITIONABLE": workdir != runs[1]}
        return dataclasses.replace(load(workdir), settings=settings)

    monkeypatch.setattr(compare, "load_run", load_other)
    assert main(["compare", *map(str, runs)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert f"{runs[1]} differs from {runs[0]} in settings of JAX: JAX_THREEFRY_PARTITIONABLE (True there, False" in err


def test_training_time_adds_up_the_rates():
    """The rate of a record is that of the steps since the one before; tests and runs without rates count nothing."""
    records = [
        {"split": "train", "step": 10, "images_per_second": 100.0},
        {"split": "test", "step": 10},
        {"split": "train", "step": 30, "images_per_second": 50.0},
    ]
    assert training_seconds(records, 5) == 10 * 5 / 100 + 20 * 5 / 50
    assert training_seconds(records[1:2], 5) is None


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"train": {"logger": "trackio"}, "dataset": {"feed": "stream", "data_dir": "elsewhere"}}, ["0, 1"]),
        ({"optimizer": {"learning_rate": 0.2}}, ["0", "1"]),
        ({"dataset": {"name": "folder", "path": "dogs"}}, ["0", "1"]),
    ],
)
def test_what_may_differ_in_a_line_and_what_may_not(runs, capsys, change, lines):
    """Where metrics go and where data is read from are no configuration of their own; other images or rates are."""
    config = json.loads((runs[1] / "config.json").read_text())
    for group, values in change.items():
        config[group] |= values
    (runs[1] / "config.json").write_text(json.dumps(config))
    assert main(["compare", *map(str, runs[:2])]) == 0
    assert [row[1] for row in lines_of(capsys)[1:]] == lines


def test_seeds_share_a_curve_with_a_band_of_one_deviation(runs, tmp_path):
    assert main(["compare", *map(str, runs), f"--out={tmp_path / 'figure'}"]) == 0
    assert sorted(path.name for path in (tmp_path / "figure").iterdir()) == ["curves.png", "curves.svg"]
    assert "seed_0 (3 seeds)" in (tmp_path / "figure" / "curves.svg").read_text()
    accuracy = curves.draw([runs]).axes[0]
    (band,) = [each for each in accuracy.collections if each.get_gid() == "0 test band"]
    heights = band.get_paths()[0].vertices[:, 1]
    mean, deviation = 100 * statistics.mean(ACCURACIES), 100 * statistics.stdev(ACCURACIES)
    assert (heights.min(), heights.max()) == pytest.approx((mean - deviation, mean + deviation))
    (line,) = [each for each in accuracy.lines if each.get_gid() == "0 test"]
    assert line.get_ydata() == pytest.approx([mean])
