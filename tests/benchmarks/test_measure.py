"""What the benchmarks share: turns alternate, ratios are of turns, tables line up, JSON says where it was measured."""

import json

from benchmarks import measure


def test_turns_alternate_and_time_every_call():
    calls = []
    times = measure.turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert "".join(calls) == "ababab"
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 3}
    assert all(second >= 0 for seconds in times.values() for second in seconds)


def test_the_ratio_is_the_median_of_the_turns_ratios():
    assert measure.median_ratio([2.0, 30.0, 3.0], [1.0, 10.0, 4.0]) == 2.0  # 2, 3, 0.75; of the medians: 0.75


def test_a_table_lines_up():
    rows = [{"what": "ours", "rate": 12.3456}, {"what": "theirs", "rate": None}]
    assert measure.table(rows, ["what", "rate"]) == "what     rate\nours    12.35\ntheirs"


def test_json_says_where_it_was_measured(tmp_path):
    measure.write_json(tmp_path / "found.json", {"rows": [{"rate": 1.5}]})
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"] == [{"rate": 1.5}]
    assert found["versions"]["jax"]
    assert found["machine"]["cores"] >= 1
    assert found["command"]
