"""The table of what each change of the recipe is worth, and that the page says what the kept runs say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from attn_cnn_jax.config import validate
from attn_cnn_jax.runs.directory import read_config
from benchmarks import kept, tricks

KEPT = Path(__file__).parents[2] / "results" / "tricks"
CHANGES = [(table, change) for table, (_, changes) in tricks.TABLES.items() for change in changes]
FOLDERS = {(table, tricks.name_of(change)): change for table, change in CHANGES}
RUNS = sorted(KEPT.glob("*/*/seed_*"))


@pytest.mark.parametrize(("table", "change"), CHANGES)
def test_every_change_is_one_that_can_be_trained(table, change):
    config = tricks.configured(table, change, 0, None)
    validate(config)
    first = next(iter(tricks.TABLES[table][1]))
    assert (config.to_dict() == tricks.configured(table, first, 0, None).to_dict()) == (change == first)


def test_rows_have_two_epochs_or_the_number_that_they_name():
    for table, change in CHANGES:
        train = tricks.configured(table, change, 0, None).train
        named = re.search(r"(\d+) epochs", change)
        assert train.num_epochs == train.eval_every_epochs == (int(named[1]) if named else tricks.EPOCHS)


def test_differences_are_those_of_runs_of_the_same_seed(tmp_path):
    found = {"the recipe, 12 channels": (0.5, 0.6, 0.7), "batches of 100": (0.49, 0.62)}
    for change, accuracies in found.items():
        for seed, accuracy in enumerate(accuracies):
            place = tmp_path / "resnet" / tricks.name_of(change) / f"seed_{seed}"
            place.mkdir(parents=True)
            records = [
                {"split": "validation", "accuracy": 0.1},
                {"split": "validation", "accuracy": accuracy},
                {"split": "test", "accuracy": 0.9},
            ]
            (place / "metrics.jsonl").write_text(
                "".join(
                    json.dumps({"step": n, "epoch": 1.0, "accuracy": 0.1} | each) + "\n"
                    for n, each in enumerate(records)
                )
            )
    recipe, other = tricks.rows(tmp_path, "resnet")
    assert list(recipe.values()) == ["the recipe, 12 channels", "60.0 ± 10.0", "", 3]
    deviation = np.std([-1, 2], ddof=1)
    assert list(other.values()) == ["batches of 100", "55.5 ± 9.2", f"+0.5 ± {deviation:.1f}", 2]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(run.parts[-3:]))
def test_kept_runs_are_of_these_configurations(run):
    table, seed = run.parents[1].name, int(run.name.removeprefix("seed_"))
    change = FOLDERS[table, run.parent.name]
    assert kept.training_of(read_config(run)) == kept.training_of(tricks.configured(table, change, seed, None))


@pytest.mark.parametrize("table", tricks.TABLES)
def test_the_page_has_the_table_of_the_kept_runs(table):
    found = tricks.rows(KEPT, table)
    assert found
    assert kept.markdown(found, tricks.COLUMNS) in tricks.PAGE.read_text(encoding="utf-8")
