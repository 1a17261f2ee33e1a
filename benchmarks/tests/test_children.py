"""A process of its own: what it returns, its memory apart from ours, and what becomes of one that has too little."""

import os

import numpy as np

from benchmarks.children import MIB, OUT_OF_MEMORY, alone, forget_peak, peak_bytes


def test_a_child_reports_its_own_peak():
    held = np.ones(300 * MIB // 8)
    assert peak_bytes() > held.nbytes
    assert 0 < alone(peak_bytes) < 200 * MIB


def test_too_little_memory_is_said():
    assert len(alone(bytearray, 2 * MIB, memory_limit=1.0)) == 2 * MIB
    assert alone(bytearray, 2048 * MIB, memory_limit=1.0) == OUT_OF_MEMORY
    assert alone(os.abort) == OUT_OF_MEMORY  # as by the system's killer


def test_a_peak_can_be_forgotten():
    np.ones(300 * MIB // 8)
    before = peak_bytes()
    if forget_peak():
        assert peak_bytes() < before
    else:
        assert peak_bytes() == before
