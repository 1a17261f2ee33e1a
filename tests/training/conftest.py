"""A run so small that it trains in seconds, on the embedded digits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SMALL = (
    "--config.model.hidden_size=8",
    "--config.model.intermediate_size=8",
    "--config.model.num_layers=1",
    "--config.model.num_heads=4",
    "--config.model.downsample=2",
    "--config.train.batch_size=100",
    "--config.train.log_every_steps=9",
    "--config.train.tensorboard=False",
)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A folder for prepared data sets that is not the user's."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """A compilation cache that all processes of a test session share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def command(data_dir, cache_dir):
    """Starts `python train.py` for a small run: `command(workdir, *more arguments) -> Popen`."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "",
        "JAX_PLATFORMS": "cpu",
    }

    def start(workdir, *arguments):
        return subprocess.Popen(
            [
                sys.executable,
                ROOT / "train.py",
                f"--config={ROOT / 'configs/digits.py'}",
                f"--workdir={workdir}",
                f"--config.dataset.data_dir={data_dir}",
                *SMALL,
                *arguments,
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start
