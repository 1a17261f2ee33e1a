"""Training on pictures of the user's own; `tests/data` shows that they are the same data whichever way they come."""

import json
import shutil

import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.loop import run
from tests.support.digits_run import records_of
from tests.support.own_pictures import random_picture, write_folder


def test_predictions_name_the_classes_without_the_data_and_pictures_that_moved_are_the_same_run(
    tmp_path, capsys, one_device
):
    splits, data = ("train", "validation", "test"), tmp_path / "data"
    own = write_folder(tmp_path / "own", classes=("cat", "dog", "emu"), count=48, splits=splits, size=(10, 8))
    assert main(["prepare", "folder", f"--path={own}", "--image-size=4x8", f"--data-dir={data}"]) == 0
    assert "Read back 144 training and 144 test images" in capsys.readouterr().out
    config = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4, downsample=2)
    config.dataset.update({"name": "folder", "data_dir": str(data), "path": str(own)})
    config.train.update({"batch_size": 96, "num_epochs": 1, "logger": "none"})
    run(config, tmp_path / "run")
    said = capsys.readouterr().out
    assert f"folder {own}: 144 train, 144 validation, 144 test images of 3 classes, 10x8x3, mean 0." in said
    assert json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]["class_names"] == ["cat", "dog", "emu"]
    assert {each["split"] for each in records_of(tmp_path / "run")} == {*splits}
    assert load_run(tmp_path / "run", step="best").step == 1

    config.dataset.path = str(shutil.move(own, tmp_path / "moved"))
    shutil.rmtree(data)
    random_picture(5, (30, 20)).save(tmp_path / "mine.png")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "mine.png"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in found["classes"]} == {"cat", "dog", "emu"}
    run(config, tmp_path / "run")
    random_picture(6, (10, 8), "L").convert("RGB").save(tmp_path / "moved" / "train" / "cat" / "cat_0.png")
    with pytest.raises(UserError, match=r"another configuration: dataset\.(mean|std)|of other data"):
        run(config, tmp_path / "run")
