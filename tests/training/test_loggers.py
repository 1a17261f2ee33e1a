"""Metrics go to W&B or Trackio as they go to metrics.jsonl; offline; a package that is missing is named."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import types

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.loggers import create_logger


def config_of(data_dir, logger):
    """A small network on digits; three steps an epoch."""
    config = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=2, downsample=2)
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.train.update({"batch_size": 400, "num_epochs": 1, "logger": logger})
    return config


class Recorder(types.ModuleType):
    """A stand-in for the module of a service: keeps what it is told."""

    def __init__(self):
        super().__init__("recorder")
        self.begun, self.records, self.ended = [], [], 0
        self.Settings = dict

    def init(self, **options):
        self.begun.append(options)

    def log(self, numbers, step):
        self.records.append({"step": step} | numbers)

    def finish(self):
        self.ended += 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_logger_is_told_what_metrics_jsonl_holds(name, data_dir, tmp_path, monkeypatch):
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, name, recorder)
    loop.run(config_of(data_dir, name), tmp_path / "run")
    (options,) = recorder.begun
    assert options["name"].startswith("run")
    assert (options["config"]["model"]["num_heads"], options["resume"]) == (2, "allow")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == len(recorder.records) == 2
    for line, sent in zip(lines, recorder.records, strict=True):
        assert sent["step"] == line["step"] == 3
        assert sent[f"{line['split']}/loss"] == line["loss"]
        assert sent[f"{line['split']}/accuracy"] == line["accuracy"]
    assert recorder.ended == 1


def test_a_run_directory_is_one_record_and_may_change_its_logger(data_dir, tmp_path, monkeypatch):
    recorder = Recorder()
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, recorder)
    for workdir in (tmp_path / "run", tmp_path / "run", tmp_path / "other"):
        (workdir / "seed_0").mkdir(parents=True, exist_ok=True)
        create_logger("wandb", config_of(data_dir, "wandb"), workdir)
        create_logger("trackio", config_of(data_dir, "trackio"), workdir / "seed_0")
    wandb, trackio = ([options[key] for options in recorder.begun[n::2]] for n, key in ((0, "id"), (1, "name")))
    for identities in (wandb, trackio):
        assert identities[0] == identities[1] != identities[2]
    loop.run(config_of(data_dir, "wandb"), tmp_path / "run")
    loop.run(config_of(data_dir, "none"), tmp_path / "run")  # not refused as another experiment


def test_another_run_at_the_same_path_is_another_record(quadratic_run, data_dir, tmp_path, monkeypatch):
    recorder, config = Recorder(), config_of(data_dir, "wandb")
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    workdir = tmp_path / "run"
    loop.run(config, workdir)
    config.train.num_epochs = 2
    loop.run(config, workdir)
    shutil.rmtree(workdir)
    loop.run(config, workdir)
    first, resumed, other = (options["id"] for options in recorder.begun)
    assert first == resumed != other
    shutil.rmtree(workdir)
    shutil.copytree(quadratic_run, workdir)  # begun by an earlier version, which kept no id
    create_logger("wandb", config, workdir)
    assert recorder.begun[-1]["id"] == hashlib.blake2b(str(workdir).encode(), digest_size=8).hexdigest()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_is_named_by_its_extra(name, data_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(UserError, match=rf"pip install \"attn-cnn-jax\[{name}\]\""):
        loop.run(config_of(data_dir, name), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_cannot_begin_says_why(data_dir, tmp_path, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(recorder, "init", lambda **options: (_ for _ in ()).throw(RuntimeError("no key")))
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    with pytest.raises(UserError, match=r"cannot begin: no key\nsee that package's documentation"):
        create_logger("wandb", config_of(data_dir, "wandb"), tmp_path)


SCRIPT = """
import sys
from pathlib import Path
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.training.loggers import create_logger
logger = create_logger(sys.argv[1], attention_config(), Path(sys.argv[2]))
logger.log(3, {"test/accuracy": 0.625})
logger.close()
"""


def send(name, folder, **environment):
    """Sends one record in a process of its own, without network."""
    (folder / "run").mkdir()
    command = [sys.executable, "-c", SCRIPT, name, str(folder / "run")]
    values = os.environ | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "HOME": str(folder)} | environment
    done = subprocess.run(command, env=values, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_wandb_keeps_records_offline(tmp_path):
    pytest.importorskip("wandb", reason='pip install -e ".[wandb]"')
    send("wandb", tmp_path, WANDB_MODE="offline")
    (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert b"test/accuracy" in record.read_bytes()


@pytest.mark.slow
def test_trackio_keeps_records_on_this_machine(tmp_path):
    pytest.importorskip("trackio", reason='pip install -e ".[trackio]"')
    send("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    (path,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("select metrics from metrics").fetchall()
    assert any("0.625" in str(row) for row in rows)
