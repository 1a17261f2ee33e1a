"""What the benchmarks share: turns alternate, ratios are of turns, tables line up, JSON says where it was measured."""

import json

from benchmarks import measure


def test_turns_alternate_and_time_the_second_call_of_each(monkeypatch):
    calls, clock = [], [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def work(name):
        clock[0] += {"a": 1, "b": 2}[name] if calls[-1:] == [name] else 9  # 9: after another's turn
        calls.append(name)

    times = measure.turns({"a": lambda: work("a"), "b": lambda: work("b")}, 3)
    assert "".join(calls) == "aabb" * 3
    assert times == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_the_ratio_is_the_median_of_the_turns_ratios():
    assert measure.median_ratio([2.0, 30.0, 3.0], [1.0, 10.0, 4.0]) == 2.0  # 2, 3, 0.75; of the medians: 0.75


def test_a_table_lines_up():
    rows = [{"what": "ours", "rate": 12.3456}, {"what": "theirs", "rate": None}]
    assert measure.table(rows, ["what", "rate"]) == "what      rate\nours     12.35\ntheirs"


def test_json_says_where_it_was_measured(tmp_path):
    measure.write_json(tmp_path / "found.json", {"rows": [{"rate": 1.5}]})
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"] == [{"rate": 1.5}]
    assert found["versions"]["jax"]
    assert found["machine"]["cores"] >= 1
    assert found["command"]
