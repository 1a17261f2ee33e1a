"""The small files of a run directory: they survive kills, refuse a second owner, and say what differs or is damaged."""

import json

import numpy as np
import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import append, cut_back, read_metrics
from attn_cnn_jax.training.loop import held


def record(step, split="train"):
    return {"step": step, "epoch": step / 10, "split": split, "loss": 0.1 * step, "accuracy": 0.5}


def test_a_half_written_last_line_is_not_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(record(1)) + "\n" + json.dumps(record(2))[:20])
    assert read_metrics(path) == [record(1)]
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_a_resumed_run_cuts_back_to_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    cut_back(path, 0)  # of a new run: an empty file
    for step in (5, 10, 15):
        append(path, record(step))
    with open(path, "a") as file:
        file.write('{"step": 20, "ep')
    cut_back(path, 10)
    append(path, record(15, "test"))
    assert read_metrics(path) == [record(5), record(10), record(15, "test")]
    assert path.read_text().endswith("\n")


def test_a_run_directory_belongs_to_one_configuration(tmp_path):
    config = attention_config()
    directory.claim(tmp_path, config)
    directory.claim(tmp_path, config)
    config.dataset.data_dir = "/elsewhere"  # the same experiment on another machine
    directory.claim(tmp_path, config)
    config.train.num_epochs += 1  # and for longer
    directory.claim(tmp_path, config)
    assert directory.read_config(tmp_path).train.num_epochs == config.train.num_epochs
    config.train.num_epochs -= 1
    config.train.batch_size = 50
    config.model.encoding = "learned"
    with pytest.raises(UserError) as error:
        directory.claim(tmp_path, config)
    assert "model.encoding ('quadratic' there, 'learned' here)" in str(error.value)
    assert "train.batch_size (100 there, 50 here)" in str(error.value)
    assert "train.num_epochs" in str(error.value)
    assert len(str(error.value).splitlines()) == 2
    assert directory.read_config(tmp_path).train.batch_size == 100


def test_a_run_directory_belongs_to_one_process(tmp_path):
    again = directory.locked(tmp_path / "run")
    with directory.locked(tmp_path / "run"), pytest.raises(UserError, match="another process is training"):
        again.__enter__()
    with directory.locked(tmp_path / "run"):
        pass


def test_only_a_directory_of_its_own_goes_with_a_run_that_does_not_begin(tmp_path):
    for workdir in (tmp_path / "new/er", tmp_path):
        with pytest.raises(UserError, match="refused"), directory.locked(workdir):
            raise UserError("refused")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["{", "[]", "null", "[" * 100_000, "\0"])
def test_a_damaged_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        directory.read_config(tmp_path)


def test_a_lost_configuration_is_that_of_the_checkpoints(tmp_path):
    config, wrong = attention_config(), attention_config()
    with ckpt.saving(tmp_path, config) as checkpoints:
        state = ckpt.TrainState(np.int32(0), {"a": np.ones(3, np.float32)}, {}, {"m": np.ones(3, np.float32)})
        ckpt.save(checkpoints, 0, state, config, {})
    wrong.train.batch_size = 80
    with pytest.raises(UserError, match=r"train.batch_size \(100 there, 80 here\)"), held(tmp_path, wrong):
        raise AssertionError("begins with another configuration")
    assert not (tmp_path / "config.json").exists()
    with held(tmp_path, config) as claim:
        claim()
    assert directory.to_json(directory.read_config(tmp_path)) == directory.to_json(config)
