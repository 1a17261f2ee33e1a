"""Configurations by name and by file, and overrides of every type."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_cnn_jax.cli.arguments import separate
from attn_cnn_jax.cli.configs import find_config, known_configs, load_config, run_name
from attn_cnn_jax.config import complete
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import REGISTRY

ROOT = Path(__file__).parents[2]


def test_a_name_is_the_file_in_any_folder_also_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    for name in known_configs():
        path = ROOT / "configs" / f"{name}.py"
        assert find_config(name) == path
        assert load_config(name).to_dict() == load_config(str(path)).to_dict()
    with pytest.raises(UserError, match="there is no config file configs"):
        load_config("configs")


def test_train_py_takes_a_name(tmp_path):
    """Outside of the checkout, down to the first check of a value."""
    command = [sys.executable, ROOT / "train.py", "--config=digits", "--config.train.batch_size=0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("config.train.batch_size=0: allowed is")


@pytest.mark.parametrize(
    ("config", "name"),
    [("digits", "digits"), ("digits_encodings:relative", "digits_encodings_relative"), ("digits:../x", "digits__x")],
)
def test_a_run_is_called_as_its_configuration(config, name):
    assert run_name(config) == name


@pytest.mark.parametrize("encoding", REGISTRY)
def test_every_encoding_has_a_configuration_that_trains_on_digits(encoding):
    config = complete(load_config(f"digits_encodings:{encoding}"))
    assert (config.model.encoding, config.optimizer.name, config.dataset.name) == (encoding, "muon", "digits")


def test_another_data_set_brings_its_pictures_and_classes():
    config = complete(load_config("digits", ["--config.dataset.name=cifar100"]))
    assert (config.model.image_shape, config.model.num_classes) == ((32, 32, 3), 100)
    overrides = ["--config.model.image_shape=(8, 8, 1)", "--config.dataset.name=cifar100"]
    with pytest.raises(UserError, match=r"config.model.image_shape=\(8, 8, 1\): allowed is \(32, 32, 3\) for cifar100"):
        complete(load_config("digits", overrides))


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("model.num_heads=4", 4),
        ("model.num_heads=(4,9,16)", (4, 9, 16)),
        ("model.num_heads=[4, 9, 16]", [4, 9, 16]),
        ("optimizer.boundaries=(5, 8)", (5, 8)),
        ("optimizer.learning_rate=1", 1.0),
        ("augment.flip=true", True),
        ("seed=2", 2),
        ("dataset.data_dir=/a b/c=d", "/a b/c=d"),
    ],
)
def test_overrides_have_the_type_of_their_key(override, value):
    """Of several, the last counts."""
    config = complete(load_config("digits", ["--config.seed=1", f"--config.{override}"]))
    for part in override.partition("=")[0].split("."):
        config = config[part]
    assert config == value
    assert type(config) is type(value)


def test_a_file_imports_from_beside_it_and_takes_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_this_config.py").write_text("HEADS = {'few': 2}\n")
    (tmp_path / "mine.py").write_text(
        "from beside_this_config import HEADS\nfrom attn_cnn_jax.config import attention_config\n"
        "def get_config(text):\n    return attention_config(num_heads=HEADS[text])\n"
    )
    assert load_config(f"{tmp_path / 'mine.py'}:few").model.num_heads == 2


def test_overrides_are_told_from_other_words():
    heads = "--config.model.num_heads=(4, 9)"
    overrides, rest = separate(["digits", heads, "--config.seed", "3", "-config.seed=1", "--config=x", "--top=1"])
    assert overrides == [heads, "--config.seed", "-config.seed=1"]
    assert rest == ["digits", "--config=x", "--top=1"]
