"""Training on pictures of the user's own: the losses of the same data from the package; the run needs no data after."""

import json
import shutil

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.loop import run
from tests.support.digits_run import records_of
from tests.support.own_pictures import random_picture, write_digits, write_folder

pytestmark = pytest.mark.usefixtures("one_device")


def configure(data_dir, name, path="", **dataset):
    config = attention_config(
        hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4, downsample=2, attention_dropout=0.0
    )
    config.dataset.update({"name": name, "data_dir": str(data_dir), "path": str(path), **dataset})
    config.augment.update({"crop_padding": 1, "flip": False})
    config.train.update({"batch_size": 96, "num_epochs": 1, "log_every_steps": 5, "logger": "none"})
    return config


def test_a_run_on_a_folder_is_that_on_the_same_data_of_the_package_and_needs_no_data_after(tmp_path, data_dir):
    folder, _ = write_digits(tmp_path / "own")
    for name, path in (("digits", ""), ("folder", folder)):
        run(configure(data_dir if name == "digits" else tmp_path / "data", name, path), tmp_path / name)
    shutil.rmtree(folder)
    shutil.rmtree(tmp_path / "data")
    assert len(records_of(tmp_path / "digits")) == 4
    assert records_of(tmp_path / "folder") == records_of(tmp_path / "digits")
    images = sources.load("digits", data_dir).test.images[:20]
    restored, package = (load_run(tmp_path / name) for name in ("folder", "digits"))
    np.testing.assert_array_equal(restored.predict(images), package.predict(images))
    assert restored.class_names == tuple("0123456789")
    assert tuple(restored.config.model.image_shape) == (8, 8, 1)
    assert (tuple(restored.config.dataset.mean), tuple(restored.config.dataset.std)) == ((0.3052,), (0.376,))


def test_predictions_name_the_classes_and_pictures_that_moved_are_the_same_run(tmp_path, capsys):
    splits = ("train", "validation", "test")
    own = write_folder(tmp_path / "own", classes=("cat", "dog", "emu"), count=48, splits=splits, size=(10, 8))
    config = configure(tmp_path / "data", "folder", own)
    run(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]["class_names"] == ["cat", "dog", "emu"]
    assert {each["split"] for each in records_of(tmp_path / "run")} == set(splits)
    assert load_run(tmp_path / "run", step="best").step == 1
    shutil.rmtree(tmp_path / "data")
    random_picture(5, (30, 20)).save(tmp_path / "mine.png")
    said = capsys.readouterr().out
    assert f"folder {own}: 144 train, 144 validation, 144 test images of 3 classes, 10x8x3, mean 0." in said
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "mine.png"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in found["classes"]} == {"cat", "dog", "emu"}
    config.dataset.path = str(shutil.move(own, tmp_path / "moved"))
    run(config, tmp_path / "run")
    random_picture(6, (10, 8), "L").convert("RGB").save(tmp_path / "moved" / "train" / "cat" / "cat_0.png")
    with pytest.raises(UserError, match=r"another configuration: dataset\.(mean|std)|of other data"):
        run(config, tmp_path / "run")


def test_prepare_says_what_it_found(tmp_path, capsys):
    own = write_folder(tmp_path / "own", size=(10, 20))
    assert main(["prepare", "folder", f"--path={own}", "--image-size=4x8", f"--data-dir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert f"folder {own}: 6 train, 2 test images of 2 classes, 4x8x3, mean 0." in said
    assert "20% of each class are the test split, chosen by the names" in said
    assert "Read back 6 training and 2 test images" in said
