"""Turns alternate, ratios are of turns, memory is of one process."""

import os

import numpy as np

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


def test_a_process_of_its_own_has_its_own_peak_and_may_run_out_of_memory():
    held = np.ones(300 * measure.MIB // 8)
    assert measure.peak_bytes() > held.nbytes
    assert 0 < measure.alone(measure.peak_bytes) < 250 * measure.MIB
    assert measure.alone(os.abort) == measure.OUT_OF_MEMORY  # as by the system's killer
