"""A run directory from somebody else: to look at it writes, prepares, removes and waits for nothing elsewhere."""

import dataclasses
import shutil

import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.images import dataset_of
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.runs import directory
from attn_cnn_jax.training.loop import run
from tests.support import cifar_archives


@pytest.mark.parametrize("command", ["heads", "evaluate"])
def test_looking_prepares_nothing(content_run, command, refused, tmp_path, monkeypatch):
    config = directory.read_config(content_run)
    config.dataset.update({"name": "cifar10", "data_dir": str(tmp_path / "mine")})
    foreign = dataclasses.replace(load_run(content_run), config=config)
    monkeypatch.setattr(f"attn_cnn_jax.cli.{command}.load_run", lambda *args: foreign)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))
    for flags, message in (
        ([], f"cifar10 is not in {tmp_path}/mine."),
        ([f"--data-dir={tmp_path}"], f"cifar10 is not in {tmp_path}."),
        ([f"--data-dir={tmp_path}/nowhere"], f"--data-dir={tmp_path}/nowhere: there is no"),
    ):
        refused(lambda flags=flags: main([command, str(content_run), *flags]), message)
    assert not list(tmp_path.iterdir())


def test_a_run_opens_where_the_data_is_elsewhere_now(content_run, tmp_path, monkeypatch):
    """Trained with a folder of data that is gone, or with another TFDS_DATA_DIR."""
    cifar_archives.prepare(tmp_path)
    config = directory.read_config(content_run)
    config.dataset.update({"name": "cifar10", "data_dir": str(tmp_path / "gone")})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert len(dataset_of(config).test.labels) == 7
    config.dataset.name = "digits"  # the package includes them
    assert len(dataset_of(config).test.labels) == 355


def test_a_folder_and_a_lock_that_lead_elsewhere(quadratic_run, refused, tmp_path, data_dir, one_device):
    workdir = shutil.copytree(quadratic_run, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (workdir / "figures").symlink_to(tmp_path / "elsewhere")
    refused(lambda: main(["figures", str(workdir), f"--data-dir={data_dir}", "--figures=maps"]), "is a link to")

    (tmp_path / "victim").write_text("mine")
    (workdir / ".lock").symlink_to(tmp_path / "victim")
    refused(lambda: run(directory.read_config(workdir), workdir), f"cannot write to the run directory {workdir}")


def test_the_home_folder_is_meant_by_its_sign(monkeypatch, tmp_path, refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    refused(lambda: main(["heads", "~/x"]), f"{tmp_path}/home/x is not a run directory")
