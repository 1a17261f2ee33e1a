"""Numbers of kept runs, and tables inside pages."""

import pytest

from benchmarks import kept


def test_minutes_are_those_of_all_pictures_at_the_median_rate():
    rates = [{"split": "train", "epoch": n, "images_per_second": rate} for n, rate in ((1, 10), (2, 500), (3, 1000))]
    assert kept.minutes([*rates, {"split": "test", "epoch": 3}]) == 150_000 / 500 / 60


def test_mean_and_deviation_of_seeds():
    assert kept.with_deviation([50.0]) == "50.0"
    assert kept.with_deviation([50.0, 52.0, 51.0]) == "51.0 ± 1.0"


def test_a_text_is_put_between_its_markers_alone(tmp_path):
    page = tmp_path / "page.md"
    before = "a\n<!-- x -->\nold\n<!-- end of x -->\n<!-- y -->\nstays\n<!-- end of y -->\n"
    page.write_text(before)
    kept.put(page, "x", kept.markdown([{"a": 1}, {"a": 2, "b": 3}], ("a", "b")))
    assert page.read_text() == before.replace("old", "| a | b |\n| --- | --- |\n| 1 |  |\n| 2 | 3 |")


def test_either_train_or_show(capsys):
    for argv in ([], ["--out=x", "--show=y"]):
        with pytest.raises(SystemExit):
            kept.parse(kept.parser("doc"), argv)
        assert "give --out=OUT, or --show=DIR" in capsys.readouterr().err
