"""A run so small that it trains in seconds, on the embedded digits."""

import pytest

from robustness.small_runs import Trainer


@pytest.fixture(scope="session")
def trainer(data_dir, tmp_path_factory):
    """Starts such a run in a process; all share data and compiled programs."""
    return Trainer(data_dir, tmp_path_factory.mktemp("cache"), [])
