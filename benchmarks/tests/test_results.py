"""The table of training runs is that of their records; a run without any is an empty line."""

import json

from benchmarks import results


def write_run(folder, records):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def test_table_json_and_figure(tmp_path, capsys):
    train = [
        {"step": n, "epoch": n / 10, "split": "train", "loss": 2.0 / n, "accuracy": 0.1}
        | {"learning_rate": 0.1 / n, "images_per_second": 100.0 + n}
        for n in (10, 20, 30)
    ]
    test = [{"step": 10 * n, "epoch": n, "split": "test", "loss": 1.0, "accuracy": 0.125 * n} for n in (1, 2)]
    runs = [write_run(tmp_path / "trained", train + test), write_run(tmp_path / "begun", [])]
    assert results.main([*runs, f"--out={tmp_path}", f"--json={tmp_path / 'found.json'}"]) == 0
    trained, begun = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert trained["run"] == "trained"
    assert (trained["step"], trained["epoch"], trained["test accuracy (%)"]) == (30, 3.0, 25.0)
    assert trained["pictures/s"] == 120.0
    assert begun == {"run": "begun"}
    assert "trained" in capsys.readouterr().out
    assert (tmp_path / "learning_rate.png").stat().st_size > 0
    assert (tmp_path / "learning_rate.svg").stat().st_size > 0


def test_the_figure_shows_what_was_recorded():
    records = [{"split": "train", "epoch": epoch, "learning_rate": 0.1 * epoch} for epoch in (1.0, 2.0)]
    figure = results.draw({"a": records, "b": []})
    (line, empty) = figure.axes[1].lines
    assert line.get_xydata().tolist() == [[1.0, 0.1], [2.0, 0.2]]
    assert not len(empty.get_xydata())
