"""attn-cnn evaluate: the numbers that training recorded, the mean of logits by hand, text and JSON."""

import json

import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.cli.main import main


def test_the_numbers_are_those_that_training_recorded(data_dir, capsys):
    assert main(["evaluate", "pretrained:digits", "--json", f"--data-dir={data_dir}"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    recorded = load_pretrained("digits").test_record
    assert found["right"] == 348
    assert found["count"] == 355
    assert found["accuracy"] == pytest.approx(recorded["accuracy"], rel=1e-6)
    assert found["loss"] == pytest.approx(recorded["loss"], rel=1e-4)


def test_mirror_images_have_a_line_of_their_own(data_dir, capsys):
    assert main(["evaluate", "pretrained:digits", "--mirrored", f"--data-dir={data_dir}"]) == 0
    header, plain, mirrored = capsys.readouterr().out.splitlines()
    assert header.split() == ["test", "images", "accuracy", "right", "loss", "(nats)"]
    assert plain.startswith("as they are")
    assert plain.split()[3:-1] == ["98.03%", "348", "of", "355"]
    assert mirrored.startswith("with their mirror images")
    assert "98.03%" not in mirrored  # of digits, a mirror image is another matter
