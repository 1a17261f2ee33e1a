"""Ratios are fitted to times that have them."""

import pytest

from benchmarks import implementations


def test_ratios_that_times_were_made_of_are_found():
    ratios = {"dense": 1.0, "factorised": 7.0, "blocked": 1.5}
    samples = [
        (name, size, 100, 100 * (30.0 + 2.0 * ratio * implementations.multiply_adds(name, size)))
        for name, ratio in ratios.items()
        for size in (4, 8, 16)
    ]
    assert implementations.fit(samples) == pytest.approx(ratios)
