"""The breakdown of a step is of one thread: XLA's profiler times no other."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import breakdown

CONFIG = """
from configs import digits

def get_config():
    config = digits.get_config()
    config.model.num_layers = 1
    config.model.implementation = "factorised"  # in a loop
    config.train.batch_size = 20
    return config
"""


def test_operations_are_timed_in_the_one_thread_that_computes(tmp_path):
    (tmp_path / "small.py").write_text(CONFIG)
    out = tmp_path / "found.json"
    line = [sys.executable, "-m", "benchmarks.breakdown", f"--config={tmp_path / 'small.py'}", "--steps=2"]
    environment = {key: value for key, value in os.environ.items() if key not in ("NPROC", "XLA_FLAGS")}
    done = subprocess.run([*line, f"--json={out}"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # it refuses what several threads computed
    found = json.loads(out.read_text())
    rows, operations = found["by_kind"], found["operations"]
    total = sum(each["ms per step"] for each in operations)
    known = {each["operation"]: each["kind"] for each in operations if each["kind"]}
    assert sum(each["ms per step"] for each in operations if each["kind"]) > 0.98 * total  # the rest is of no step
    assert set(breakdown.KINDS) == set(known.values())
    assert all(kind == breakdown.PRODUCTS for name, kind in known.items() if name.startswith("dot."))
    assert not any(name.startswith("while") for name in known)  # what it holds is counted
    assert 0 < total / 1000 <= found["seconds_per_step"]
    assert sum(row["share (%)"] for row in rows) == pytest.approx(100)
    assert rows[0]["operations"] > 20
    assert rows[0]["GFLOP/s"] > 0
