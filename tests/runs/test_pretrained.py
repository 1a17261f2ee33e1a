"""The networks that come along: their accuracy comes out exactly, commands take them by name, unknown names do not."""

import json
import os

import pytest

from attn_cnn_jax import load_pretrained, load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import recipe
from attn_cnn_jax.data.preparation import archives, store
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import pretrained


def test_the_accuracy_of_digits_is_that_of_its_card(data_dir):
    run, (images, labels) = load_pretrained("digits"), sources.load("digits", data_dir).test
    right = run.predict(images).argmax(axis=1) == labels
    assert right.sum() == 348
    assert run.test["accuracy"] == pytest.approx(348 / 355, rel=1e-6)  # XLA multiplies by a rounded 1 / 355
    card = (pretrained.folder_of("digits") / "README.md").read_text()
    assert "98.03% of the test pictures, at step 1995" in card
    assert "seed 0" in card
    assert run.class_names == tuple("0123456789")


@pytest.mark.skipif("ATTN_CNN_CIFAR10_ARCHIVE" not in os.environ, reason="ATTN_CNN_CIFAR10_ARCHIVE names no archive")
def test_the_accuracies_on_cifar10_are_those_of_their_cards(tmp_path):
    """Of the JPEG copy that they were trained on; other pictures give other numbers."""
    content = archives.read(os.environ["ATTN_CNN_CIFAR10_ARCHIVE"], "cifar10")
    store.prepare(recipe("cifar10"), tmp_path, content=content)
    images, labels = sources.load("cifar10", tmp_path).test
    for name, expected in (("cifar10", 7970), ("cifar10_maps16", 7319)):
        right = load_pretrained(name).predict(images).argmax(axis=1) == labels
        assert right.sum() == expected


def test_they_are_small_and_each_has_a_card():
    assert {"cifar10", "cifar10_maps16", "digits"} == set(pretrained.names())
    for name in pretrained.names():
        folder = pretrained.folder_of(name)
        assert {path.name for path in folder.iterdir()} == {
            "README.md",
            "config.json",
            "metrics.jsonl",
            "model.safetensors",
        }
        assert json.loads((folder / "config.json").read_text())["dataset"]["data_dir"] == ""
    assert sum(path.stat().st_size for path in pretrained.FOLDER.rglob("*")) <= 3_000_000


def test_commands_take_their_names(tmp_path, monkeypatch, capsys, data_dir):
    monkeypatch.chdir(tmp_path)
    assert main(["heads", "pretrained:digits"]) == 0
    assert main(["compare", "pretrained:digits"]) == 0
    assert "98.03%" in capsys.readouterr().out
    assert main(["page", "pretrained:digits", "--images=1", f"--data-dir={data_dir}"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["viewer.html"]  # not into the package


def test_other_names_are_refused_with_those_that_there_are(capsys):
    allowed = f"allowed are {', '.join(pretrained.names())}"
    for call in (load_pretrained, lambda name: load_run(f"pretrained:{name}")):
        with pytest.raises(UserError, match=allowed):
            call("imagenet")
    for name in ("", "..", "digits/..", "/"):
        with pytest.raises(UserError, match=allowed):
            load_pretrained(name)
    assert main(["heads", "pretrained:imagenet"]) == 1
    assert capsys.readouterr().err == f"no pretrained network is called 'imagenet': {allowed}\n"
