"""Pages have the tables of the kept runs, and these are runs of today's configurations."""

import functools
import json

import numpy as np
import pytest

from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import attention_config, complete
from attn_cnn_jax.errors import UserError
from benchmarks import (
    architectures,
    dinov2,
    encodings,
    fewer_heads,
    fifteen_minutes,
    fine_tuning,
    learn_convolution,
    miniature,
    records,
    results,
    svtr,
    tricks,
    your_network,
)
from benchmarks.records import DOCS, RESULTS

table_of_results = functools.cache(results.table)  # of two pages
PAGES = {
    **{(page, "results"): table_of_results for page in results.PAGES},
    (miniature.PAGE, "results"): lambda: miniature.tables(RESULTS / "miniature"),
    (encodings.PAGE, "encodings"): lambda: encodings.tables(RESULTS / "encodings"),
    (your_network.PAGE, "networks"): lambda: your_network.tables(RESULTS / "your_network"),
    (dinov2.PAGE, "dinov2"): lambda: dinov2.tables(RESULTS / "dinov2"),
    (dinov2.PAGE, "svtr"): lambda: svtr.tables(RESULTS / "svtr"),
    (architectures.PAGE, "architectures"): lambda: architectures.tables(RESULTS / "architectures"),
    (fifteen_minutes.PAGE, "contenders"): lambda: records.markdown(
        fifteen_minutes.rows(RESULTS / "fifteen_minutes"), fifteen_minutes.COLUMNS
    ),
    **{
        (tricks.PAGE, f"changes of {name}"): lambda name=name: records.markdown(
            tricks.rows(RESULTS / "tricks", name), tricks.COLUMNS
        )
        for name in tricks.TABLES
    },
    **{(fewer_heads.PAGE, name): lambda text=text: text for name, text in fewer_heads.tables().items()},
}
OF_TRICKS = {(table, tricks.name_of(row)): row for table, (_, rows) in tricks.TABLES.items() for row in rows}
OF_ENCODINGS = {tricks.name_of(row): row for row in encodings.ROWS}


def kept():
    """Every kept run and its configuration today."""
    for run in sorted(RESULTS.glob("**/seed_*")):
        seed, name, group = int(run.name.removeprefix("seed_")), run.parent.name, run.relative_to(RESULTS).parts[0]
        if group == "runs":
            (config,) = (each for each in results.ROWS if results.folder(each) == run.parent)
            yield run, load_config(config, [f"--config.seed={seed}"])
        elif group == "tricks":
            table = run.parents[1].name
            yield run, tricks.configured(table, OF_TRICKS[table, name], seed)
        elif group == "fifteen_minutes":
            yield run, fifteen_minutes.configured(name, seed)
        elif group == "encodings":
            row, epochs = OF_ENCODINGS[run.parents[1].name], int(name.removeprefix("epochs_"))
            rate = encodings.best_rate(RESULTS / "encodings", row)
            yield run, encodings.configured(row, seed, epochs, rate)
        elif name not in (miniature.PRUNED, miniature.CONTROL):
            yield run, miniature.configured(name, seed)
    for name, training in fine_tuning.RUNS.items():
        yield RESULTS / "fine_tuning" / name, fine_tuning.configured(training)


def differences(run, config):
    """Keys in which a kept run differs from today's configuration: a recipe that changes needs another run.

    A record may have keys that no longer exist, and lack new ones.
    """
    found, today = flat(records.read_config(run)), flat(json.loads(json.dumps(config.to_dict())))
    decide = ("model", "optimizer", "train", "augment", "start", "seed")  # what a run computes
    return [key for key in found.keys() & today if key.startswith(decide) and found[key] != today[key]]


def flat(values, prefix=""):
    """`{"a": {"b": 1}} -> {"a.b": 1}`."""
    return {
        name: leaf
        for key, value in values.items()
        for name, leaf in (flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}).items()
    }


def test_kept_runs_are_of_these_configurations():
    found = {str(run.relative_to(RESULTS)): differences(run, config) for run, config in kept()}
    of_the_data = {"model.num_classes", "model.image_shape", "start.heads"}
    unimportant = {"train.logger", "train.log_every_steps", "train.eval_every_epochs"}
    assert {run: keys for run, keys in found.items() if set(keys) - of_the_data - unimportant} == {}
    assert len(found) > 90


@pytest.mark.parametrize(("page", "name"), PAGES, ids=lambda each: getattr(each, "name", each))
def test_pages_have_the_tables_of_the_kept_runs(page, name):
    text = page.read_text(encoding="utf-8")
    assert records.marked(name).findall(text) == [PAGES[page, name]()], "run its command with --write"


def test_the_page_says_what_fine_tuning_reached():
    page = (DOCS / "experiments.md").read_text(encoding="utf-8")
    rows = fine_tuning.rows(RESULTS / "fine_tuning")
    assert [row["run"] for row in rows] == list(fine_tuning.RUNS)
    for row in rows:
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{row['run']}` "))
        assert line.endswith(f"| {row['before']} | {row['after']} |".replace("|  |", "| |"))


def write_run(place, accuracies, split="test", config=None):
    found = [
        {"step": n, "epoch": n, "split": split, "loss": 1.0, "accuracy": accuracy}
        for n, accuracy in enumerate(accuracies, 1)
    ]
    records.write(place, (config or attention_config()).to_dict(), found, "digits")
    return place


def test_differences_of_tricks_are_those_of_runs_of_the_same_seed(tmp_path):
    for change, accuracies in {"the recipe, 12 channels": (0.5, 0.6, 0.7), "batches of 100": (0.49, 0.62)}.items():
        for seed, accuracy in enumerate(accuracies):
            place = tmp_path / "resnet" / tricks.name_of(change) / f"seed_{seed}"
            write_run(place, (0.1, accuracy), "validation")
    recipe, other = tricks.rows(tmp_path, "resnet")
    assert list(recipe.values()) == ["the recipe, 12 channels", "60.0 ± 10.0", "", "1.000", 3]
    assert list(other.values()) == ["batches of 100", "55.5 ± 9.2", f"+0.5 ± {np.std([-1, 2], ddof=1):.1f}", "1.000", 2]


def test_a_finished_run_is_kept_and_stands_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "kept")
    config = attention_config()
    config.train.num_epochs = 2
    for seed, accuracy in ((0, 0.5), (1, 0.9), (2, 0.6)):
        config.seed = seed
        results.keep(write_run(tmp_path / f"run_{seed}", (0.1, accuracy), config=config), "digits", "digits")
    reached = results.reached(records.kept_runs(tmp_path / "kept/runs/digits"))
    assert reached == "60.0% on digits, median of seeds 0 to 2 (50.0% to 90.0%), 2 epochs"
    with pytest.raises(UserError, match="not trained to the end"):
        results.keep(write_run(tmp_path / "short", (0.1,), config=config), "digits", "digits")


def test_a_pruned_network_is_compared_with_the_one_that_it_starts_from_and_its_control(tmp_path):
    config = miniature.configured(miniature.FIRST, 2)
    write_run(tmp_path / miniature.FIRST / "seed_2", (0.4, 0.55), config=config)
    config.start.heads = ((1, 7), (3, 2))
    write_run(tmp_path / miniature.PRUNED / "seed_2", (0.545, 0.1, 0.568), config=config)
    (row,) = miniature.pruning_rows(tmp_path)
    assert list(row.values()) == [2, "7 of layer 1; 2 of layer 3", "55.0", "54.5", "56.8"]
    write_run(tmp_path / miniature.CONTROL / "seed_2", (0.5, 0.56), config=config)
    assert list(miniature.pruning_rows(tmp_path)[0].values())[-1] == "56.0"


@pytest.mark.parametrize(("size", "share"), [("", 1), ("_16x16", (16 + 16) / (16 * 16))])
def test_the_resnet_does_as_much_arithmetic_as_quadratic_attention(size, share):
    """At 16x16 pixels that factorises: an average over rows and one over columns, for one over all pixels."""
    model, resnet = (complete(miniature.configured(f"{name}{size}", 0)).model for name in ("quadratic", "resnet"))
    linear, full, _ = count_flops(model)
    assert count_flops(resnet).full == pytest.approx(linear + share * (full - linear), rel=0.03)


def test_students_of_one_number_of_heads_share_a_line(monkeypatch, tmp_path):
    def training(heads, seed, steps):
        found = {"heads": heads, "seed": seed, "steps": steps, "final_error": heads / 10 + seed / 100}
        return found | {"residual": 0.2, "seconds": 1.0, "centre": [[[0.0, 1.0]] * heads]}

    monkeypatch.setattr(learn_convolution, "train", training)
    assert learn_convolution.main([f"--out={tmp_path}", "--heads=4", "--seeds=0-1", "--steps=1000"]) == 0
    (row,) = learn_convolution.rows(json.loads((tmp_path / "results.json").read_text())["trainings"])
    assert (row["seeds"], row["relative error"]) == (2, "40 to 41%")
