"""Runs that version 0.1.0 wrote still load, predict the same, and go on; those of several seeds can be looked at.

tests/golden/version_0.1.0 holds run directories of that version, trained on one CPU for two epochs by

    python train.py --config=configs/digits.py --config.model.hidden_size=8 --config.model.intermediate_size=8 \
        --config.model.num_layers=1 --config.model.num_heads=4 --config.train.batch_size=96 \
        --config.train.num_epochs=2 --config.train.log_every_steps=10 --config.train.logger=none ...

with what OF_EACH adds; `probabilities.npy` are its predictions for `images()`. Left out are Orbax's
commit_success.txt and, but for `quadratic`, the optimizer. Of `quadratic` there is the first checkpoint alone, and
the metrics to the end: as if the process had been killed there.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.figures import curves
from attn_cnn_jax.cli import train as command
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import last_records, mean_records, read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.runs.seeds import mean_record, seeds_of
from attn_cnn_jax.training import start

ROOT = Path(__file__).parents[2]
SMALL = (
    f"--config={ROOT / 'configs/digits.py'}",
    "--config.model.hidden_size=8",
    "--config.model.intermediate_size=8",
    "--config.model.num_layers=1",
    "--config.model.num_heads=4",
    "--config.train.batch_size=96",
    "--config.train.num_epochs=2",
    "--config.train.log_every_steps=10",
    "--config.train.logger=none",
)
OF_EACH = {
    "quadratic": ("--config.checkpoint.every_epochs=1",),
    "quadratic_generalized": ("--config.model.encoding=quadratic_generalized",),
    "learned_content": ("--config.model.encoding=learned", "--config.model.content=True"),
    "absolute_learned": ("--config.model.encoding=absolute_learned",),
}
# --config.train.num_seeds=2 --config.train.same_data_order=True, which are no keys today, and:
TWO_SEEDS = (
    "--config.seed=3",
    "--config.dataset.num_validation=200",
    "--config.checkpoint.every_epochs=1",
    "--config.checkpoint.keep_last=1",
)
FIRST, SECOND = 3, 4
STEPS = 2 * (1242 // 96)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """Unpacks a run of version 0.1.0: `old(name) -> run directory`, a new one each time."""

    def unpack(name):
        workdir = tmp_path_factory.mktemp(name)
        with tarfile.open(ROOT / f"tests/golden/version_0.1.0/{name}.tar.xz") as archive:
            archive.extractall(workdir, filter="data")
        return workdir

    return unpack


@pytest.fixture(scope="module")
def two_seeds(old):
    return old("two_seeds")


def images():
    return np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)


@pytest.mark.parametrize("name", OF_EACH)
def test_a_run_predicts_what_it_did(old, name):
    workdir = old(name)
    run = load_run(workdir)
    probabilities = np.load(workdir / "probabilities.npy")
    np.testing.assert_allclose(run.predict(images()), probabilities, rtol=1e-5)
    assert np.ptp(probabilities, axis=0).max() > 1e-3  # pictures do differ
    assert "num_seeds" not in run.config.train
    assert run.seed is None


@pytest.fixture
def train(monkeypatch, data_dir):
    """Runs train.py in this process."""
    monkeypatch.setattr(command, "use_compilation_cache", lambda: None)
    return lambda workdir, *more: main(
        ["train", *SMALL, f"--workdir={workdir}", f"--config.dataset.data_dir={data_dir}", *more]
    )


def test_the_same_command_goes_on_to_the_same_end(old, train, capsys):
    workdir = old("quadratic")
    expected = read_metrics(workdir / "metrics.jsonl")
    positions = read_positions(workdir)
    assert train(workdir, *OF_EACH["quadratic"]) == 0
    assert "going on after step 15 of 30" in capsys.readouterr().out
    found = read_metrics(workdir / "metrics.jsonl")
    assert [record.keys() for record in found] == [record.keys() for record in expected]
    for ours, theirs in zip(found, expected, strict=True):
        known = {key: value for key, value in theirs.items() if key != "images_per_second"}
        assert {key: ours[key] for key in known} == pytest.approx(known, abs=1e-5)  # it had another number of devices
    assert [record["step"] for record in read_positions(workdir)] == [0, 15, 30]
    for ours, theirs in zip(read_positions(workdir), positions, strict=True):
        for key in ("centre", "spread"):
            np.testing.assert_allclose(ours["layers"][0][key], theirs["layers"][0][key], atol=1e-4)


def test_a_run_of_another_configuration_is_still_refused(old, train, capsys):
    workdir = old("quadratic")
    assert train(workdir, *OF_EACH["quadratic"], "--config.seed=1") == 1
    assert "seed (0 there, 1 here)" in capsys.readouterr().err


def test_the_networks_of_several_seeds_load(two_seeds):
    probabilities = np.load(two_seeds / "probabilities.npy")
    runs = [load_run(two_seeds), load_run(two_seeds, seed=SECOND)]
    assert [run.seed for run in runs] == [FIRST, SECOND]
    for run, expected in zip(runs, probabilities, strict=True):
        np.testing.assert_allclose(run.predict(images()), expected, rtol=1e-5)
    assert np.abs(probabilities[0] - probabilities[1]).max() > 1e-3
    with pytest.raises(UserError, match=r"seed=5: .* has seeds 3 to 4"):
        load_run(two_seeds, seed=5)


def test_the_best_checkpoint_of_each_seed_is_found(two_seeds):
    for seed in (FIRST, SECOND):
        assert load_run(two_seeds, step="best", seed=seed).step == STEPS


def test_records_of_several_seeds_are_their_mean(two_seeds):
    records = read_metrics(two_seeds / "metrics.jsonl")
    last = [r["accuracy"] for r in records if r["split"] == "test" and r["step"] == STEPS]
    assert len(last) == 2
    summary = last_records(two_seeds)["test"]
    assert summary["accuracy"] == pytest.approx(np.mean(last))
    assert summary["accuracy_std"] == pytest.approx(np.std(last, ddof=1))
    assert len(mean_records(records)) == len(records) / 2
    assert [record["seed"] for record in read_positions(two_seeds, SECOND)] == [SECOND] * 3
    assert len(read_positions(two_seeds)) == 6


def test_a_mean_record_is_mean_and_standard_deviation_of_a_sample():
    where = {"step": 4, "epoch": 2.0, "split": "test"}
    records = [where | {"seed": n, "loss": loss, "accuracy": loss / 10} for n, loss in enumerate((1.0, 2.0, 6.0))]
    assert mean_record(records) == where | {
        "seeds": 3,
        "loss": 3.0,
        "accuracy": pytest.approx(0.3),
        "loss_std": pytest.approx(7**0.5),  # (4 + 1 + 9) / 2
        "accuracy_std": pytest.approx(7**0.5 / 10),
    }
    assert mean_record(records[:1]) == records[0]
    records[0]["input_wait"] = 0.1  # one seed was streamed, another was not
    assert "input_wait" not in mean_record(records)
    assert mean_record(records[::-1])["loss"] == 3.0


def test_commands_look_at_one_seed(two_seeds, capsys):
    tables = []
    for seed in (FIRST, SECOND):
        assert main(["heads", str(two_seeds), f"--seed={seed}"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] != tables[1]
    assert main(["heads", str(two_seeds), "--seed=0"]) == 1
    assert "has seeds 3 to 4" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*OF_EACH, "two_seeds"])
def test_summary_has_a_row_of_an_old_run(old, name, capsys):
    workdir = old(name)
    assert main(["summary", str(workdir)]) == 0
    accuracy = last_records(workdir)["test"]["accuracy"]
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == [str(workdir), f"{accuracy:.2%}"]


@pytest.mark.torch
def test_one_of_several_seeds_is_exported_if_it_is_named(two_seeds, tmp_path, capsys):
    import torch

    command = ["export", str(two_seeds), "--format=pytorch", f"--out={tmp_path / 'file'}"]
    assert main(command) == 1
    assert "has seeds 3 to 4: choose the one to export by --seed=N" in capsys.readouterr().err
    assert not (tmp_path / "file").exists()
    assert main([*command, f"--seed={SECOND}"]) == 0
    content = torch.load(tmp_path / "file", weights_only=True)
    theirs = split(load_run(two_seeds, seed=SECOND).model)[1]["classifier.kernel"]
    np.testing.assert_array_equal(content["model_state_dict"]["classifier.weight"].numpy().T, theirs)
    tests = [r for r in read_metrics(two_seeds / "metrics.jsonl") if (r["split"], r["step"]) == ("test", STEPS)]
    assert [content["test_accuracy"]] == [r["accuracy"] for r in tests if r["seed"] == SECOND]
    assert content["step"] == STEPS


@pytest.mark.parametrize("format", ["safetensors", "jax"])
def test_an_exported_seed_is_a_run_of_that_seed_alone(two_seeds, tmp_path, format):
    out = tmp_path / "exported"
    assert main(["export", str(two_seeds), f"--seed={SECOND}", f"--format={format}", f"--out={out}"]) == 0
    assert f"seed {SECOND}" in (out / "README.md").read_text()
    assert directory.read_config(out).seed == SECOND
    if format == "safetensors":
        for asked in (None, SECOND):
            run = load_run(out, seed=asked)
            assert run.seed is None
            assert run.config.seed == SECOND
            assert run.test | {"seed": SECOND} == load_run(two_seeds, seed=SECOND).test


def test_curves_of_several_seeds_are_their_mean_and_a_band(two_seeds):
    figure = curves.draw([two_seeds])
    accuracy = figure.axes[0]
    (line,) = [line for line in accuracy.lines if line.get_gid() == "0 test"]
    records = [r for r in read_metrics(two_seeds / "metrics.jsonl") if r["split"] == "test"]
    found = np.array([r["accuracy"] for r in records]).reshape(2, 2)
    np.testing.assert_allclose(line.get_ydata(), 100 * found.mean(axis=1))
    (band,) = [each for each in accuracy.collections if each.get_gid() == "0 test band"]
    low, high = band.get_datalim(accuracy.transData).intervaly
    mean, std = 100 * found.mean(axis=1), 100 * found.std(axis=1, ddof=1)
    assert (low, high) == pytest.approx(((mean - std).min(), (mean + std).max()))


def test_training_does_not_go_on_with_several_seeds(old, train, capsys):
    workdir = old("two_seeds")
    before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    assert train(workdir, *TWO_SEEDS) == 1
    said = capsys.readouterr().err
    assert "holds a run of 2 seeds" in said
    assert "attn-cnn train --seeds=3-4" in said
    assert len(said.splitlines()) == 2
    assert {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"} == before


@pytest.mark.parametrize("key", ["num_seeds", "same_data_order", "seeds_at_once"])
def test_a_new_run_has_one_seed(train, capsys, tmp_path, key):
    assert train(tmp_path / "run", f"--config.train.{key}=5") == 1
    said = capsys.readouterr().err
    assert f"config.train.{key} is no longer a configuration key" in said
    assert "attn-cnn train --seeds=0-4" in said
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_the_same_seed_of_several(two_seeds, tmp_path):
    config = load_run(two_seeds).config
    config.start.run = str(two_seeds)
    for config.seed in (FIRST, SECOND):
        _, model, _ = start.begin(config, tmp_path)
        ours, theirs = split(model)[1], split(load_run(two_seeds, seed=config.seed).model)[1]
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array)
    config.seed = SECOND + 1
    with pytest.raises(UserError, match="has seeds 3 to 4"):
        start.begin(config, tmp_path)


@pytest.mark.parametrize("count", [0, -1, 10**9, "two", None, 1.5])
def test_a_number_of_seeds_that_makes_no_sense_is_refused(two_seeds, tmp_path, count):
    config = directory.read_config(two_seeds)
    config.train = config.train.to_dict() | {"num_seeds": count}
    with pytest.raises(UserError, match=f"config.train.num_seeds={count!r}"):
        seeds_of(config)


def test_a_run_from_before_there_were_several_seeds_has_one():
    config = attention_config()
    assert seeds_of(directory.from_json(json.dumps(config.to_dict()))) == range(config.seed, config.seed + 1)
