"""A run is of the data that it began with: it does not go on with other data, and who evaluates it there is told."""

import shutil

import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.images import first_images
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import fingerprint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import directory
from attn_cnn_jax.training.loop import run


@pytest.fixture
def copy(quadratic_run, tmp_path):
    return shutil.copytree(quadratic_run, tmp_path / "run")


@pytest.fixture
def inverted(monkeypatch, data_dir):
    """The pictures of the data set as a negative, wherever it is loaded."""
    data = sources.load("digits", data_dir)
    train, test = (split._replace(images=255 - split.images) for split in (data.train, data.test))
    for name in ("load", "read"):
        monkeypatch.setattr(sources, name, lambda *arguments, **keywords: data._replace(train=train, test=test))


OTHER = "train has other images here, test has other images here"


def test_a_run_does_not_go_on_with_other_data(copy, inverted, one_device):
    with pytest.raises(UserError) as error:
        run(directory.read_config(copy), copy)
    first, second = str(error.value).splitlines()
    assert first == f"{copy} was trained on other data: {OTHER}"
    assert "set config.dataset.data_dir" in second
    assert not (copy / "damaged").exists()


def test_who_evaluates_a_run_on_other_data_is_told(copy, inverted, caplog):
    first_images(load_run(copy), 3)
    assert f"digits is not the data that the run was trained on: {OTHER}" in caplog.text


def test_on_its_own_data_nothing_is_said(copy, data_dir, caplog):
    restored = load_run(copy)
    assert restored.data == fingerprint(sources.load("digits", data_dir))
    first_images(restored, 3)
    assert not caplog.records
