"""The small files of a run directory: they survive kills, refuse a second owner, and say what differs or is damaged."""

import shutil

import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.test_images import first_images
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import fingerprint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import append, cut_back, read_metrics
from attn_cnn_jax.training.loop import run


def record(step, split="train"):
    return {"step": step, "epoch": step / 10, "split": split, "loss": 0.1 * step, "accuracy": 0.5}


def test_a_resumed_run_cuts_back_to_its_checkpoint_and_a_half_line_is_not_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    cut_back(path, 0)  # of a new run: an empty file
    for step in (5, 10, 15):
        append(path, record(step))
    with open(path, "a") as file:
        file.write('{"step": 20, "ep')
    assert read_metrics(path) == [record(5), record(10), record(15)]
    cut_back(path, 10)
    append(path, record(15, "test"))
    assert read_metrics(path) == [record(5), record(10), record(15, "test")]
    assert path.read_text().endswith("\n")


def test_a_run_directory_belongs_to_one_process_and_goes_with_a_run_that_does_not_begin(tmp_path):
    again = directory.locked(tmp_path / "run")
    with directory.locked(tmp_path / "run"), pytest.raises(UserError, match="another process is training"):
        again.__enter__()
    for workdir in (tmp_path / "run", tmp_path / "new/er", tmp_path):
        with pytest.raises(UserError, match="refused"), directory.locked(workdir):
            raise UserError("refused")
    assert not list(tmp_path.iterdir())


def test_a_damaged_config_is_named(tmp_path):
    for text in ("{", "[]", "null", "[" * 100_000, "\0"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"config\.json is damaged"):
            directory.read_config(tmp_path)


def test_a_run_does_not_go_on_with_other_data_and_who_evaluates_it_there_is_told(
    quadratic_run, tmp_path, monkeypatch, data_dir, one_device, caplog, capsys
):
    copy, data = shutil.copytree(quadratic_run, tmp_path / "run"), sources.load("digits", data_dir)
    assert load_run(copy).data == fingerprint(data)
    first_images(load_run(copy), 3)
    assert not caplog.records
    train, test = (split._replace(images=255 - split.images) for split in (data.train, data.test))
    for name in ("load", "read"):
        monkeypatch.setattr(sources, name, lambda *arguments, **keywords: data._replace(train=train, test=test))
    other = "train has other images here, test has other images here"
    with pytest.raises(UserError, match=f"the checkpoint of step 20 in {copy} holds a run of other data: {other}"):
        run(directory.read_config(copy), copy)
    assert not (copy / "damaged").exists()
    record = (copy / "metrics.jsonl").read_text()
    assert main(["evaluate", str(copy), "--keep"]) == 1
    assert f"--keep: digits is not the data that the run was trained on: {other}" in capsys.readouterr().err
    assert (copy / "metrics.jsonl").read_text() == record
    first_images(load_run(copy), 3)
    assert f"digits is not the data that the run was trained on: {other}" in caplog.text
