"""The breakdown of a step is of one thread: XLA's profiler times no other."""

import json
import os
import subprocess
import sys

import jax.numpy as jnp
import pytest

from attn_cnn_jax import compiling
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
    assert [row["kind"] for row in found["by_kind"]] == list(breakdown.KINDS)
    assert sum(row["share (%)"] for row in found["by_kind"]) == pytest.approx(100)
    total = sum(row["ms per step"] for row in found["by_kind"]) / 1000
    assert total <= found["seconds_per_step"]  # nothing is counted twice, such as a loop and what it holds
    assert found["by_kind"][0]["operations"] > 20


def test_products_are_found_in_a_compiled_program():
    def function(x):
        return jnp.tanh(x @ x + 1), x.T.copy()

    kinds = breakdown.kinds_of(compiling.jit(function).lower(jnp.ones((64, 64))).compile().as_text())
    assert {kind for name, kind in kinds.items() if name.startswith("dot")} == {breakdown.PRODUCTS}
    assert set(kinds.values()) == set(breakdown.KINDS)
