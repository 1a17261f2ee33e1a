"""Configurations by name and by file, with overrides of every type; what those of configs/ say is the paper's."""

import sys
from pathlib import Path

import pytest

from attn_cnn_jax.cli.arguments import separate
from attn_cnn_jax.cli.configs import find_config, known_configs, load_config, run_name
from attn_cnn_jax.config import attention_config, complete, validate
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import REGISTRY

ROOT = Path(__file__).parents[2]


def test_a_name_is_the_file_in_any_folder_also_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert [find_config(name) for name in known_configs()] == sorted((ROOT / "configs").glob("*.py"))
    assert load_config("digits").to_dict() == load_config(str(ROOT / "configs/digits.py")).to_dict()
    for name, called in {"digits": "digits", "digits:a": "digits_a", "digits:../x": "digits__x"}.items():
        assert run_name(name) == called


def test_overrides_have_the_type_of_their_key():
    """Of several, the last counts."""
    for override, value in {
        "model.num_heads=4": 4,
        "model.num_heads=(4,9,16)": (4, 9, 16),
        "dataset.mean=[0.5]": (0.5,),
        "optimizer.learning_rate=1": 1.0,
        "augment.flip=true": True,
        "seed=2": 2,
        "dataset.data_dir=/a b/c=d": "/a b/c=d",
        "dataset.data_dir=12": "12",
    }.items():
        key, _, _ = override.partition("=")
        found = complete(load_config("digits", ["--config.seed=1", f"--config.{override}"]))
        for part in key.split("."):
            found = found[part]
        assert found == value
        assert type(found) is type(value)


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
    overrides, rest = separate(["digits", heads, "-config.seed=1", "--config=x", "--top=1"])
    assert (overrides, rest) == ([heads, "-config.seed=1"], ["digits", "--config=x", "--top=1"])
    with pytest.raises(UserError, match=r"^--config.seed has no value: write --config.seed=VALUE"):
        separate(["digits", "--config.seed", "3"])


def test_every_file_is_valid_and_says_how_to_run_it():
    for name, path in known_configs().items():
        validate(load_config(name))
        complete(load_config(name, ["--config.dataset.path=images"] if name == "own_images" else []))
        assert f"python train.py --config=configs/{name}.py" in Path(path).read_text().split('"""')[1]
    for encoding in REGISTRY:
        assert complete(load_config(f"digits_encodings:{encoding}")).model.encoding == encoding


def test_base_configuration_is_the_papers():
    config = attention_config()
    model = config.model
    assert (model.num_layers, model.num_heads, model.hidden_size, model.intermediate_size) == (6, 9, 400, 512)
    assert (model.head_size, model.downsample, model.image_shape, model.num_classes) == (0, 2, (32, 32, 3), 10)
    assert (model.dropout, model.attention_dropout, model.encoding, model.content) == (0.1, 0.1, "quadratic", False)
    assert (config.train.batch_size, config.train.num_epochs) == (100, 300)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.momentum) == ("sgd", 0.1, 0.9)
    assert (optimizer.weight_decay, optimizer.schedule, optimizer.warmup_fraction) == (1e-4, "cosine", 0.05)
    assert (config.augment.crop_padding, config.augment.flip, config.dataset.name) == (4, True, "cifar10")


def test_files_of_the_paper_differ_from_the_base_in_the_network_alone():
    """But for the ResNet, whose rate steps down by ten without a warm-up."""
    base = attention_config().to_dict()
    for name, difference in {
        "quadratic": {},
        "quadratic_generalized": {"encoding": "quadratic_generalized"},
        "learned_rel": {"encoding": "learned"},
        "learned_rel_content": {"encoding": "learned", "content": True},
        "many_heads": {"num_heads": 16},
    }.items():
        assert load_config(name).to_dict() == base | {"model": base["model"] | difference}
    resnet = load_config("resnet18").to_dict()
    assert resnet["model"]["depth"] == 18
    changed = base["optimizer"] | {"schedule": "step", "warmup_fraction": 0.0}
    assert resnet == base | {"model": resnet["model"], "optimizer": changed}
