"""A run that more than one file looks at."""

import pytest

from attn_cnn_jax.training.loop import run
from tests.support.digits_run import digits_config


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory, data_dir):
    """A finished run of three epochs, on two of eight fake devices; tests that change it copy it first."""
    workdir = tmp_path_factory.mktemp("digits") / "run"
    run(digits_config(data_dir), workdir)
    return workdir
