"""A run directory from somebody else: to look at it writes, prepares, removes and waits for nothing elsewhere."""

import dataclasses
import os
import shutil

import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.pictures import dataset_of
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources
from attn_cnn_jax.runs import directory
from attn_cnn_jax.training.loop import run


@pytest.fixture
def foreign(content_run, tmp_path):
    """The configuration of a run whose attention needs pictures; its data would lie in a folder of the visitor."""
    config = directory.read_config(content_run)
    config.dataset.data_dir = str(tmp_path / "mine")
    (tmp_path / "mine/digits/incomplete.thesis").mkdir(parents=True)
    return config


@pytest.mark.parametrize("command", ["heads", "figures", "page", "convolution"])
def test_looking_prepares_and_removes_nothing(content_run, foreign, command, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(
        f"attn_cnn_jax.cli.{command}.load_run", lambda *args: dataclasses.replace(load_run(*args), config=foreign)
    )
    refused(lambda: main([command, str(content_run)]), f"digits is not in {tmp_path}/mine/digits/1.0.0, where")


def test_looking_reads_what_is_prepared_and_keeps_no_cache(data_dir, foreign, tmp_path):
    folder = shutil.copytree(data_dir / "digits/1.0.0", tmp_path / "mine/digits/1.0.0")
    (folder / "arrays.npz").unlink()
    before = sorted((tmp_path / "mine").rglob("*"))
    assert len(dataset_of(foreign).test.labels) == 355
    assert sorted((tmp_path / "mine").rglob("*")) == before
    sources.load("digits", tmp_path / "mine")  # who names the folder gets a cache
    assert (folder / "arrays.npz").exists()


@pytest.mark.parametrize("command", ["figures", "convolution"])
def test_a_folder_to_write_to_that_leads_elsewhere(quadratic_run, command, refused, tmp_path, data_dir):
    workdir = shutil.copytree(quadratic_run, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (workdir / command).symlink_to(tmp_path / "elsewhere")
    few = ["--figures=maps"] if command == "figures" else ["--kernel-sizes=1", "--test-images=2"]
    refused(lambda: main([command, str(workdir), f"--data-dir={data_dir}", *few]), "is a link to")


def test_a_lock_that_leads_elsewhere(quadratic_run, refused, tmp_path, one_device):
    workdir = shutil.copytree(quadratic_run, tmp_path / "run")
    (tmp_path / "victim").write_text("mine")
    (workdir / ".lock").symlink_to(tmp_path / "victim")
    refused(lambda: run(directory.read_config(workdir), workdir), f"cannot write to the run directory {workdir}")


PIPES = {
    "config.json": ["heads", "RUN"],
    "metrics.jsonl": ["compare", "RUN"],
    "positions.jsonl": ["page", "RUN", "--images=0"],
    "picture.png": ["predict", "RUN", "RUN/picture.png"],
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_for_a_file_is_not_waited_for(quadratic_run, refused, tmp_path, name, data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    workdir = shutil.copytree(quadratic_run, tmp_path / "run")
    (workdir / name).unlink(missing_ok=True)
    os.mkfifo(workdir / name)
    refused(lambda: main([word.replace("RUN", str(workdir)) for word in PIPES[name]]), "not a regular file")


def test_the_home_folder_is_meant_by_its_sign(monkeypatch, tmp_path, refused, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    refused(lambda: main(["heads", "~/x"]), f"{tmp_path}/home/x is not a run directory")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    train = ["train", "--config=digits", "--workdir=~/x"]
    assert main(train) == 2
    assert "'~/x': the home folder is not known" in capsys.readouterr().err
