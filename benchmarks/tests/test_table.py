"""The table of results agrees with the runs that are kept, and is the one in README.md and docs/experiments.md."""

import json

import pytest

from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.directory import read_config
from benchmarks import kept, table


@pytest.mark.parametrize("page", table.PAGES, ids=lambda page: page.name)
def test_both_pages_have_the_table_of_the_runs(page):
    found = kept.marked("results").findall(page.read_text(encoding="utf-8"))
    assert found == [table.table()], "run python -m benchmarks.table --write"


@pytest.mark.parametrize("run", sorted(table.RESULTS.glob("*/seed_*")), ids=lambda run: f"{run.parent.name}-{run.name}")
def test_a_kept_run_is_one_of_its_configuration(run):
    """Of today's file: a recipe that changes needs another run."""
    (name,) = (name for name in table.ROWS if table.folder(name) == run.parent)
    kept, config = with_defaults(read_config(run)), load_config(name)
    assert run.name == f"seed_{kept.seed}"
    for part in ("augment", "optimizer", "train"):
        for key, value in config[part].items():
            if (part, key) not in (("train", "logger"), ("train", "log_every_steps")):
                found = kept[part][key]
                assert (tuple(found) if isinstance(found, list) else found) == value, f"{part}.{key}"
    for key in ("encoding", "content", "num_layers", "num_heads", "hidden_size", "head_size", "downsample"):
        assert kept.model[key] == config.model[key], key


def test_a_run_is_kept_when_it_is_finished(quadratic_like, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "RESULTS", tmp_path / "kept")
    place = table.keep(quadratic_like(accuracy=0.5, epochs=2), "digits", "digits")
    assert place == tmp_path / "kept/digits/seed_0"
    assert table.here("digits") == "50.0% on digits, seed 0, 2 epochs"
    for seed, accuracy in ((1, 0.9), (2, 0.6)):
        table.keep(quadratic_like(accuracy=accuracy, epochs=2, seed=seed), "digits", "digits")
    assert table.here("digits") == "60.0% on digits, median of seeds 0 to 2 (50.0% to 90.0%), 2 epochs"
    with pytest.raises(UserError, match="not trained to the end"):
        table.keep(quadratic_like(accuracy=0.5, epochs=1), "digits", "digits")


@pytest.fixture
def quadratic_like(tmp_path):
    """Writes what a run of two epochs leaves, after some of them."""

    def write(accuracy, epochs, seed=0):
        from attn_cnn_jax.config import attention_config, complete
        from attn_cnn_jax.runs import directory

        config = attention_config()
        config.seed, config.train.num_epochs = seed, 2
        workdir = tmp_path / f"run_{seed}_{epochs}"
        workdir.mkdir()
        directory.claim(workdir, complete(config))
        records = [
            {"step": 10 * n, "epoch": n, "split": split, "loss": 1.0, "accuracy": accuracy}
            for n in range(1, epochs + 1)
            for split in ("train", "test")
        ]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return workdir

    return write
