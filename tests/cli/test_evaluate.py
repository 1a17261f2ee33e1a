"""attn-cnn evaluate: the numbers that training recorded, as text and JSON."""

import json

import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.cli.main import main


def test_the_numbers_are_those_that_training_recorded_and_a_size_is_that_of_images_and_network(data_dir, capsys):
    def found(*flags):
        assert main(["evaluate", "pretrained:digits", "--json", f"--data-dir={data_dir}", *flags]) == 0
        return json.loads(capsys.readouterr().out)

    plain, mirrored = found("--mirrored")
    recorded = load_pretrained("digits").test_record
    assert (plain["right"], plain["count"], mirrored["count"]) == (353, 355, 355)
    assert plain["accuracy"] == pytest.approx(recorded["accuracy"], rel=1e-6)
    assert plain["loss"] == pytest.approx(recorded["loss"], rel=1e-4)
    assert mirrored["accuracy"] < plain["accuracy"]  # of digits, a mirror image is another matter
    assert found("--size=8", "--log-pixels") == [plain]
    (larger,) = found("--size=16", "--images=100")
    assert larger["count"] == 100
    assert larger["accuracy"] > 0.9


def test_text_has_a_line_for_each_kind_of_images(quadratic_run, capsys):
    assert main(["evaluate", str(quadratic_run), "--images=100", "--mirrored"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["test", "images", "accuracy", "right", "loss", "(nats)"]
    assert [line.split()[-3:-1] for line in lines] == [["of", "100"]] * 2
