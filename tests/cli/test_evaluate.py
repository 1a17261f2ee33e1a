"""attn-cnn evaluate: the numbers that training recorded, as text and JSON."""

import json

import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.cli.main import main


def test_the_numbers_are_those_that_training_recorded(data_dir, capsys):
    assert main(["evaluate", "pretrained:digits", "--mirrored", "--json", f"--data-dir={data_dir}"]) == 0
    plain, mirrored = json.loads(capsys.readouterr().out)
    recorded = load_pretrained("digits").test_record
    assert (plain["right"], plain["count"], mirrored["count"]) == (348, 355, 355)
    assert plain["accuracy"] == pytest.approx(recorded["accuracy"], rel=1e-6)
    assert plain["loss"] == pytest.approx(recorded["loss"], rel=1e-4)
    assert mirrored["accuracy"] < plain["accuracy"]  # of digits, a mirror image is another matter
    assert main(["evaluate", "pretrained:digits", f"--data-dir={data_dir}"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["test", "images", "accuracy", "right", "loss", "(nats)"]
    assert line.split()[:-1] == ["as", "they", "are", "98.03%", "348", "of", "355"]


def test_at_another_size_images_and_network_grow_together(data_dir, capsys):
    command = ["evaluate", "pretrained:digits", "--images=100", "--json", f"--data-dir={data_dir}"]
    found = {}
    for size in ("8", "8x12", "16"):
        assert main([*command, f"--size={size}", "--log-pixels"]) == 0
        found[size] = json.loads(capsys.readouterr().out)[0]
    assert main(command) == 0
    assert found["8"] == json.loads(capsys.readouterr().out)[0]
    assert found["16"]["count"] == 100
    assert found["16"]["right"] >= found["8"]["right"] - 3
