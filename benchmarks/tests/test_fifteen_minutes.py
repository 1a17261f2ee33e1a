"""Plain PyTorch trains as the configuration says, and the page has the table of the kept runs."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from attn_cnn_jax.config import complete
from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.data.sources import Dataset, Split
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.training.optimizer import learning_rate
from benchmarks import fifteen_minutes, kept, measure, tricks

KEPT = Path(__file__).parents[2] / "results" / "fifteen_minutes"
RUNS = sorted(KEPT.glob("*/seed_*"))


@pytest.fixture
def train_pytorch():
    from benchmarks import train_pytorch

    return train_pytorch


@pytest.mark.torch
def test_the_learning_rate_is_ours(train_pytorch):
    config = fifteen_minutes.configured("attention", 0).optimizer
    ours = learning_rate(config, 4, 25)
    warmup = round(config.warmup_fraction * 100)
    theirs = [train_pytorch.warmup_and_cosine(step, 0.004, 100, warmup) for step in range(100)]
    np.testing.assert_allclose([float(ours(step)) for step in range(100)], theirs, atol=1e-8)


@pytest.mark.torch
def test_pictures_are_windows_of_padded_ones_half_of_them_mirrored(train_pytorch):
    images = np.random.default_rng(0).integers(1, 256, (400, 6, 5, 3), dtype=np.uint8)
    found = train_pytorch.augmented(images, 2, np.random.default_rng(1))
    padded, mirrored, places = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))), [], set()
    for n, picture in enumerate(found):
        windows = {
            (i, j, s): padded[n, i : i + 6, j : j + 5][:, ::s] for i in range(5) for j in range(5) for s in (1, -1)
        }
        ((row, column, step),) = (at for at, window in windows.items() if np.array_equal(window, picture))
        mirrored.append(step == -1)
        places.add((row, column))
    assert 0.4 < np.mean(mirrored) < 0.6
    assert len(places) == 25


@pytest.mark.torch
@pytest.mark.parametrize("optimizer", ["muon", "adam"])
def test_it_learns_what_is_easy(train_pytorch, optimizer):
    config = fifteen_minutes.configured("pytorch", 0)
    config.model.update({"num_layers": 1, "hidden_size": 16, "intermediate_size": 16})
    config.optimizer.update({"name": optimizer, "learning_rate": 0.02})
    config.train.update({"batch_size": 10, "num_epochs": 3})
    labels = np.arange(60, dtype=np.int32) % 2
    split = Split((labels[:, None, None, None] * 200 * np.ones((1, 32, 32, 3))).astype(np.uint8), labels)
    records = list(train_pytorch.train(complete(config), Dataset(split, split, ("dark", "light"), SPECS["cifar10"])))
    assert [(record["split"], record["step"]) for record in records] == [
        (name, step) for step in (6, 12, 18) for name in ("train", "test")
    ]
    assert records[-1]["accuracy"] == 1


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parent.name}-{run.name}")
def test_kept_runs_are_of_these_configurations(run):
    config = fifteen_minutes.configured(run.parent.name, int(run.name.removeprefix("seed_")))
    assert kept.training_of(read_config(run)) == kept.training_of(config)


@pytest.mark.torch
def test_rates_are_those_of_training(monkeypatch):
    """Of both kinds of contenders, with a clock that goes on by a second whenever it is read."""
    small = ("model.num_layers=1", "model.hidden_size=8", "model.intermediate_size=8", "model.num_heads=4")
    contenders = {name: ("cifar10_cpu", small, "") for name in ("attention", "pytorch")}
    monkeypatch.setattr(fifteen_minutes, "CONTENDERS", contenders)
    monkeypatch.setattr(fifteen_minutes, "PICTURES", 100)
    monkeypatch.setattr(measure.time, "perf_counter", itertools.count().__next__)
    assert fifteen_minutes.measured(repeats=1) == {"attention": 100.0, "pytorch": 100.0}


def test_minutes_are_epochs_by_the_rate(tmp_path):
    config = fifteen_minutes.configured("resnet", 0)
    record = {"step": 1, "epoch": 6.0, "split": "test", "accuracy": 0.5}
    kept.write_run(tmp_path / "resnet" / "seed_0", config, [record])
    assert fifteen_minutes.rows(tmp_path)[0]["minutes"] == ""
    (tmp_path / fifteen_minutes.RATES).write_text(json.dumps({"pictures_per_second": {"resnet": 500.0}}))
    assert fifteen_minutes.rows(tmp_path)[0]["minutes"] == "10.0"


def test_the_page_has_the_table_of_the_kept_runs():
    assert RUNS
    found = kept.markdown(fifteen_minutes.rows(KEPT), fifteen_minutes.COLUMNS)
    assert found in tricks.PAGE.read_text(encoding="utf-8")
