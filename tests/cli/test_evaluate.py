"""attn-cnn evaluate: the numbers of `run.evaluate` as JSON and text, of as many images, mirrored and at a size."""

import dataclasses
import json

import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources


def test_the_numbers_are_those_of_the_run_and_a_size_is_that_of_images_and_network(quadratic_run, data_dir, capsys):
    def printed(*flags):
        assert main(["evaluate", str(quadratic_run), f"--data-dir={data_dir}", *flags]) == 0
        return capsys.readouterr().out

    run, (images, labels) = load_run(quadratic_run), sources.load("digits", data_dir).test
    plain, mirrored = json.loads(printed("--json", "--mirrored"))
    for found, expected in (
        (plain, run.evaluate(images, labels)),
        (mirrored, run.evaluate(images, labels, mirrored=True)),
    ):
        assert {name: found[name] for name in ("right", "count", "loss")} == pytest.approx(dataclasses.asdict(expected))
        assert found["accuracy"] == expected.accuracy
    assert json.loads(printed("--json", "--size=8", "--log-pixels")) == [plain]
    header, *lines = printed("--images=100", "--mirrored", "--size=16").splitlines()
    assert header.split() == ["test", "images", "accuracy", "right", "loss", "(nats)"]
    assert [line.split()[-3:-1] for line in lines] == [["of", "100"]] * 2
