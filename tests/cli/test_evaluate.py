"""attn-cnn evaluate: the numbers of `run.evaluate` as JSON and text, of as many images, mirrored and at a size."""

import csv
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
        names = "right", "count", "loss", "accuracy", "balanced_accuracy"
        assert {name: found[name] for name in names} == pytest.approx({name: getattr(expected, name) for name in names})
        assert found["accuracy"] == expected.accuracy
    assert json.loads(printed("--json", "--size=8")) == [plain | {"images": "resized to 8x8"}]
    header, *lines = printed("--images=100", "--mirrored", "--size=16").splitlines()
    assert header.split() == ["test", "images", "accuracy", "balanced", "right", "loss", "(nats)"]
    assert [line.split()[-3:-1] for line in lines] == [["of", "100"]] * 2


def test_by_class_is_printed_and_the_confusion_matrix_is_written(quadratic_run, data_dir, tmp_path, capsys):
    command = ["evaluate", str(quadratic_run), f"--data-dir={data_dir}", "--by-class"]
    assert main([*command, "--json", f"--out={tmp_path}"]) == 0
    ((line),) = json.loads(capsys.readouterr().out)
    run, (images, labels) = load_run(quadratic_run), sources.load("digits", data_dir).test
    assert line["by_class"] == run.evaluate(images, labels).by_class
    assert [row["class"] for row in line["by_class"]] == list("0123456789")
    predicted = run.predict(images).argmax(axis=1)
    with (tmp_path / "confusion.csv").open() as file:
        rows = list(csv.DictReader(file))
    for k, row in enumerate(rows):
        assert row["class"] == str(k)
        assert [int(row[str(n)]) for n in range(10)] == [((labels == k) & (predicted == n)).sum() for n in range(10)]
    assert {path.name for path in tmp_path.iterdir()} == {"confusion.csv", "confusion.png", "confusion.svg"}
    assert main(command) == 0
    assert "most often taken for" in capsys.readouterr().out


def test_a_class_may_be_called_class_and_all_of_one_may_be_right(data_dir, tmp_path, monkeypatch, capsys):
    run = load_run("pretrained:digits")
    run.config.dataset.class_names = names = ("class", *"123456789")
    monkeypatch.setattr("attn_cnn_jax.cli.evaluate.load_run", lambda *args: run)
    assert main(["evaluate", "pretrained:digits", f"--data-dir={data_dir}", "--by-class", f"--out={tmp_path}"]) == 0
    with (tmp_path / "confusion.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["class", *names]
    assert [row[0] for row in rows] == list(names)
    assert "None" not in capsys.readouterr().out
