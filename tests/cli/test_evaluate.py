"""attn-cnn evaluate: the numbers that training recorded, the mean of logits by hand, text and JSON."""

import json

import numpy as np
import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.analysis import evaluation
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources


def test_the_numbers_are_those_that_training_recorded(data_dir, capsys):
    assert main(["evaluate", "pretrained:digits", "--json", f"--data-dir={data_dir}"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    recorded = load_pretrained("digits").test
    assert found["right"] == 348
    assert found["count"] == 355
    assert found["accuracy"] == pytest.approx(recorded["accuracy"], rel=1e-6)
    assert found["loss"] == pytest.approx(recorded["loss"], rel=1e-4)


def test_mirror_images_have_a_line_of_their_own(data_dir, capsys):
    assert main(["evaluate", "pretrained:digits", "--mirrored", f"--data-dir={data_dir}"]) == 0
    header, plain, mirrored = capsys.readouterr().out.splitlines()
    assert header.split() == ["test", "pictures", "accuracy", "right", "loss", "(nats)"]
    assert plain.startswith("as they are")
    assert plain.split()[3:-1] == ["98.03%", "348", "of", "355"]
    assert mirrored.startswith("with their mirror images")
    assert "98.03%" not in mirrored  # of digits, a mirror image is another matter


@pytest.mark.parametrize("at_once", [7, 5000])
def test_mirrored_is_the_mean_of_both_logits(data_dir, monkeypatch, at_once):
    monkeypatch.setattr(evaluation, "AT_ONCE", at_once)
    run, test = load_pretrained("digits"), sources.load("digits", data_dir).test.at(np.arange(20))
    found = evaluation.evaluate(run, test, mirrored=True)
    logits = [run.intermediates(images)["logits"] for images in (test.images, test.images[:, :, ::-1].copy())]
    mean = np.mean(logits, axis=0, dtype=np.float64)
    exponentials = np.exp(mean)
    of_label = exponentials[np.arange(20), test.labels] / exponentials.sum(axis=1)
    assert found.right == (mean.argmax(axis=1) == test.labels).sum()
    assert found.count == 20
    assert found.loss == pytest.approx(-np.log(of_label).mean(), rel=1e-5)
