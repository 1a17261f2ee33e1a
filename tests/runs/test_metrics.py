"""metrics.jsonl and the other small files of a run directory survive kills and refuse a second owner."""

import json

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training.reporter import MetricsWriter, Progress, clock


def record(step, split="train"):
    return {"step": step, "epoch": step / 10, "split": split, "loss": 0.1 * step, "accuracy": 0.5}


def test_a_half_written_last_line_is_not_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(record(1)) + "\n" + json.dumps(record(2))[:20])
    assert read_metrics(path) == [record(1)]
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_going_on_cuts_back_to_the_checkpoint(tmp_path):
    writer = MetricsWriter(tmp_path, after_step=0, tensorboard=False)
    for step in (5, 10, 15):
        writer.write(record(step))
    writer.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 20, "ep')
    writer = MetricsWriter(tmp_path, after_step=10, tensorboard=False)
    writer.write(record(15, "test"))
    writer.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [record(5), record(10), record(15, "test")]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("\n")


def test_tensorboard_gets_the_same_numbers(tmp_path):
    writer = MetricsWriter(tmp_path, after_step=0, tensorboard=True)
    writer.write(record(5))
    writer.close()
    (events,) = tmp_path.glob("events.out.tfevents.*")
    data = events.read_bytes()
    assert b"train/loss" in data
    assert b"train/accuracy" in data
    assert b"train/step" not in data


def test_plain_lines_where_there_is_no_terminal(capsys):
    progress = Progress(0, 40, 10)
    progress.advance(10)
    progress.report(record(10) | {"images_per_second": 12.0})
    progress.close()
    out, err = capsys.readouterr()
    assert out.startswith("epoch 1.00 step 10/40: train loss 1.0000 accuracy 50.00%, 12 pictures/s, ")
    assert out.endswith(" left\n")
    assert err == ""


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (95, "1:35"), (4000, "1:06:40")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_a_run_directory_belongs_to_one_configuration(tmp_path):
    config = attention_config()
    directory.claim(tmp_path, config)
    directory.claim(tmp_path, config)
    config.dataset.data_dir = "/elsewhere"  # the same experiment on another machine
    directory.claim(tmp_path, config)
    config.train.batch_size = 50
    config.model.encoding = "learned"
    with pytest.raises(UserError) as error:
        directory.claim(tmp_path, config)
    assert "model.encoding ('quadratic' there, 'learned' here)" in str(error.value)
    assert "train.batch_size (100 there, 50 here)" in str(error.value)
    assert len(str(error.value).splitlines()) == 2
    assert directory.read_config(tmp_path).train.batch_size == 100


def test_a_run_directory_belongs_to_one_process(tmp_path):
    again = directory.locked(tmp_path / "run")
    with directory.locked(tmp_path / "run"), pytest.raises(UserError, match="another process is training"):
        again.__enter__()
    with directory.locked(tmp_path / "run"):
        pass


def test_a_damaged_config_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        directory.read_config(tmp_path)


def test_a_failed_write_leaves_the_old_content(tmp_path):
    path = tmp_path / "file"
    directory.write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        directory.write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
