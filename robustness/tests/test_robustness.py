"""The harness notices what is lost, and counts it."""

import shutil

import pytest

from robustness.__main__ import row, survives
from robustness.processes import assert_same_run


def test_what_is_lost_is_counted(tmp_path, capsys):
    def loses(trainer, folder, generator):
        raise AssertionError("step 9 is lost")

    results = [
        survives(loses, None, tmp_path / "a", 0),
        survives(lambda *_: {"while saving": 3, "at other moments": 7}, None, tmp_path / "b", 0),
    ]
    assert "step 9 is lost" in capsys.readouterr().out
    assert row("killed", results)[:4] == ("killed", "20", "10", "10")
    assert row("killed", results)[5] == "3 while saving, 7 at other moments"


def test_runs_that_differ_are_noticed(quadratic_run, tmp_path):
    other = shutil.copytree(quadratic_run, tmp_path / "other")
    assert_same_run(other, quadratic_run)
    text = (other / "metrics.jsonl").read_text()
    for changed in (text.replace("0.6", "0.61"), text.rpartition("{")[0], ""):
        (other / "metrics.jsonl").write_text(changed)
        with pytest.raises(AssertionError):
            assert_same_run(other, quadratic_run)
