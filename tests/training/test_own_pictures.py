"""Training on pictures of the user's own: the losses of the same data from the package; the run needs no data after."""

import json
import shutil

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.flops import count_parameters
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training.loop import run
from tests.support.own_pictures import random_picture, write_digits, write_folder

pytestmark = pytest.mark.usefixtures("one_device_in_module")

SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 4, "downsample": 2}


def configure(data_dir, name, path="", **dataset):
    config = attention_config(**SMALL, attention_dropout=0.0)
    config.dataset.update({"name": name, "data_dir": str(data_dir), "path": str(path), **dataset})
    config.augment.update({"crop_padding": 1, "flip": False})
    config.train.update({"batch_size": 96, "num_epochs": 1, "log_every_steps": 5, "logger": "none"})
    return config


def losses(workdir):
    return [(each["split"], each["step"], each["loss"]) for each in read_metrics(workdir / "metrics.jsonl")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_dir, one_device_in_module):
    """Runs on the digits: of the package, of a folder, of a file. The folder is then gone."""
    root = tmp_path_factory.mktemp("own")
    folder, file = write_digits(root)
    for name, path in (("digits", ""), ("folder", folder), ("npz", file)):
        run(configure(data_dir if name == "digits" else root / "data", name, path), root / "runs" / name)
    shutil.rmtree(folder)
    shutil.rmtree(root / "data")
    return root / "runs"


def test_losses_are_those_of_the_same_data_of_the_package(trained):
    expected = losses(trained / "digits")
    assert len(expected) == 4
    assert losses(trained / "folder") == losses(trained / "npz") == expected


def test_a_run_knows_its_classes_and_predicts_without_its_data(trained, data_dir):
    images = sources.load("digits", data_dir).test.images[:20]
    expected = load_run(trained / "digits").predict(images)
    for name in ("folder", "npz"):
        restored = load_run(trained / name)
        np.testing.assert_array_equal(restored.predict(images), expected)
        assert restored.class_names == tuple("0123456789")
        assert tuple(restored.config.model.image_shape) == (8, 8, 1)
        assert (tuple(restored.config.dataset.mean), tuple(restored.config.dataset.std)) == ((0.3052,), (0.376,))


def test_predictions_name_the_classes(tmp_path, capsys):
    own = write_folder(
        tmp_path / "own",
        classes=("cat", "dog", "emu"),
        count=48,
        splits=("train", "validation", "test"),
        size=(10, 8),
    )
    config = configure(tmp_path / "data", "folder", own)
    run(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]["class_names"] == ["cat", "dog", "emu"]
    assert {each[0] for each in losses(tmp_path / "run")} == {"train", "validation", "test"}
    assert load_run(tmp_path / "run", step="best").step == 1
    shutil.rmtree(tmp_path / "data")
    random_picture(5, (30, 20)).save(tmp_path / "mine.png")
    said = capsys.readouterr().out
    assert f"folder {own}: 144 train, 144 validation, 144 test images of 3 classes, 10x8x3, mean 0." in said
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "mine.png"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in found["classes"]} == {"cat", "dog", "emu"}
    config.dataset.path = str(shutil.move(own, tmp_path / "moved"))  # the same pictures elsewhere are the same run
    run(config, tmp_path / "run")
    random_picture(6, (10, 8), "L").convert("RGB").save(tmp_path / "moved" / "train" / "cat" / "cat_0.png")
    with pytest.raises(UserError, match=r"another configuration: dataset\.(mean|std)|trained on other data"):
        run(config, tmp_path / "run")


def test_prepare_says_what_it_found(tmp_path, capsys):
    own = write_folder(tmp_path / "own", size=(10, 20))
    line = ["prepare", "folder", f"--path={own}", "--image-size=4x8", f"--data-dir={tmp_path}"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert f"folder {own}: 6 train, 2 test images of 2 classes, 4x8x3, mean 0." in said
    assert "20% of each class are the test split, chosen by the names" in said
    assert "Read back 6 training and 2 test images" in said
    assert main(line) == 0
    assert "is already prepared" in capsys.readouterr().out
    keys = {"name": "folder", "path": own, "image_size": "(4,8)", "data_dir": tmp_path}
    assert main(["summary", "digits", *(f"--config.dataset.{key}={value}" for key, value in keys.items())]) == 0
    model = load_config("digits").model
    model.update({"image_shape": (4, 8, 3), "num_classes": 2})
    assert f"{count_parameters(model):,}" in capsys.readouterr().out
    assert main(["prepare", "folder"]) == 2
    assert main(["prepare", "digits", "--path=x"]) == 2
