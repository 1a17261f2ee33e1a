"""What train.py refuses: flags, config files, every configuration value, combinations, folders."""

import socket
from pathlib import Path

import pytest

from attn_cnn_jax.cli import train as command
from attn_cnn_jax.cli.main import main

CONFIGS = Path(__file__).parents[2] / "configs"
DIGITS = f"--config={CONFIGS / 'digits.py'}"
SMALL = (
    "--config.model.hidden_size=8",
    "--config.model.intermediate_size=8",
    "--config.model.num_layers=1",
    "--config.model.num_heads=4",
    "--config.train.batch_size=80",
)


@pytest.fixture
def train(monkeypatch, tmp_path, data_dir):
    """Runs `train.py` in this process with a workdir below `tmp_path`."""
    monkeypatch.setattr(command, "use_compilation_cache", lambda: None)

    def start(*argv):
        argv = [str(argument).replace("TMP", str(tmp_path)) for argument in argv]
        if not any("data_dir" in argument for argument in argv) and any("digits" in argument for argument in argv):
            argv.insert(1, f"--config.dataset.data_dir={data_dir}")
        if not any("--workdir" in argument for argument in argv):
            argv.append(f"--workdir={tmp_path / 'run'}")
        return main(["train", *argv])

    return start


TOGETHER = ("--multihost", "--coordinator-address=127.0.0.1:1")
FLAGS = [
    ((), 2, "--config is missing"),
    ((DIGITS, "--nonsense"), 2, "nonsense"),
    ((DIGITS, "junk"), 2, "unrecognized arguments: junk"),
    ((DIGITS, "--num_processes=many"), 2, "--num-processes: invalid int value: 'many'"),
    ((DIGITS, "--multihost", "--coordinator-address=foo"), 2, "'foo': allowed is HOST:PORT"),
    ((DIGITS, "--multihost", "--coordinator-address=:1"), 2, "':1': allowed is HOST:PORT"),
    ((DIGITS, "--multihost", "--coordinator-address=h:99999"), 2, "'h:99999': allowed is HOST:PORT"),
    ((DIGITS, "--process-id=1"), 2, "--process-id is for one of several processes: add --multihost"),
    ((DIGITS, "--coordinator-address=h:1"), 2, "--coordinator-address is for one of several processes"),
    ((DIGITS, *TOGETHER, "--num-processes=0"), 1, "--num-processes=0: allowed is an integer from 1"),
    ((DIGITS, *TOGETHER, "--num-processes=2", "--process-id=2"), 1, "--process-id=2: allowed is 0 to 1"),
    ((DIGITS, *TOGETHER, "--process-id=-1"), 1, "--process-id=-1: allowed is an integer from 0"),
    ((DIGITS, "--config.model.content", "False"), 1, "config.model.content has no value"),
    ((DIGITS, "--config.model.content", "--config.seed=-1"), 1, "config.model.content has no value"),
    ((DIGITS, "--config.seed", "3"), 1, "config.seed has no value"),
    ((DIGITS, "--config.model"), 1, "config.model: set one of its keys"),
    ((DIGITS, "--config.model.num_heds=3"), 1, "did you mean config.model.num_heads?"),
    ((DIGITS, "--config.model.num_heds", "3"), 1, "did you mean config.model.num_heads?"),
    ((DIGITS, "--config.modle.num_heads=3"), 1, "did you mean config.model?"),
    ((DIGITS, "--config.model=3"), 1, "config.model='3': set one of its keys"),
    ((DIGITS, "--config.model.num_layers=2.5"), 1, "config.model.num_layers='2.5': allowed is an integer from 1"),
    ((DIGITS, "--config.seed.x=3"), 1, "config.seed.x is not a configuration key"),
    (("--config=",), 1, "there is no config file ''"),
    (("--config=TMP",), 1, "there is no config file"),
    (("--config=nowhere.py",), 1, "there is no config file nowhere.py"),
]


@pytest.mark.parametrize(("argv", "status", "message"), FLAGS, ids=[" ".join(a).replace(DIGITS, "") for a, *_ in FLAGS])
def test_flags(train, refused, argv, status, message):
    refused(lambda: train(*argv), message, status)


def test_a_port_that_is_taken(train, refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        flags = ("--multihost", f"--coordinator-address={address}", "--num-processes=2", "--process-id=0")
        refused(lambda: train(DIGITS, *flags), f"{address}: process 0 cannot listen there: Address already in use")


FILES = {
    "a text": ("Dear reader", "SyntaxError"),
    "zeros": ("\0\0\0", "cannot be loaded"),
    "imports what is not there": ("import nowhere_at_all", "ModuleNotFoundError"),
    "wants an argument": ("def get_config(name): return None", "TypeError: get_config() missing 1 required"),
    "raises": (
        "def get_config(): raise ValueError('of mine\\nand more')",
        "cannot be loaded: ValueError: of mine",
    ),
    "leaves": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "returns a dict": ("def get_config(): return {}", "must return an ml_collections.ConfigDict"),
    "of something else": (
        "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict({'lr': 1})",
        "config.lr is not a configuration key",
    ),
    "without a section": (
        "from attn_cnn_jax.config import attention_config\n"
        "def get_config():\n    config = attention_config()\n    del config.train\n    return config",
        "config.train is missing",
    ),
    "network of a wrong type": (
        "from attn_cnn_jax.config import attention_config\n"
        "def get_config():\n    config = attention_config()\n    config.model = 3\n    return config",
        "TypeError",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_config_file_that_is(train, refused, tmp_path, name):
    text, message = FILES[name]
    (tmp_path / "mine.py").write_text(text)
    refused(lambda: train("--config=TMP/mine.py"), message)


# A key of each type; tests/config/test_config.py has every key with every wrong value.
KEYS = (
    "seed",
    "model.dropout",
    "model.content",
    "model.encoding",
    "model.num_heads",
    "model.image_shape",
    "optimizer.boundaries",
)
VALUES = ("plenty", "-1", "nan", "1e999", "(0, -1)", "9" * 400)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_says_what_it_may_be(train, refused, key):
    for value in VALUES:
        refused(lambda value=value: train(DIGITS, f"--config.{key}={value}"), ": allowed is ")
    refused(lambda: train(DIGITS, f"--config.{key}=plenty"), f"config.{key}=")


COMBINATIONS = [
    ("model.downsample=3", "allowed is a divisor"),
    ("model.downsample=16", "allowed is a divisor"),
    ("model.encoding=relative --config.model.content=True", "False for encoding 'relative'"),
    ("model.gate=True", "False without content"),
    ("model.init=grid --config.model.num_heads=5", "a square number"),
    ("model.init=grid --config.model.encoding=learned", "which has no centres"),
    ("model.implementation=factorised --config.model.encoding=relative", "only learned and quadratic"),
    ("model.encoding=absolute_sinusoidal --config.model.hidden_size=6", "a multiple of 4"),
    ("model.dtype=float64", "float32 or bfloat16"),
    ("model.num_classes=11", "allowed is 10 for digits"),
    ("model.image_shape=(9,9,1)", "allowed is (8, 8, 1) for digits"),
    (
        "model.hidden_size=100000 --config.model.intermediate_size=100000",
        "GB with gradient and momentum",
    ),
    ("start.prune=True", "False without a run to start from"),
    ("start.reset=True", "False without a run to start from"),
    ("start.heads=((1,1),)", "() without config.start.prune"),
    ("optimizer.covariance_penalty=1.0", "0 unless config.model.encoding"),
    ("optimizer.boundaries=(5,3)", "a tuple of increasing epochs"),
    ("train.batch_size=8000", "together they must not exceed 1,442"),
    ("dataset.num_validation=1442", "together they must not exceed 1,442"),
]


@pytest.mark.parametrize(("changes", "message"), COMBINATIONS, ids=[changes for changes, _ in COMBINATIONS])
def test_values_that_do_not_go_together(train, refused, changes, message):
    refused(lambda: train(DIGITS, *SMALL, *f"--config.{changes}".split()), message)


def test_folders_that_cannot_be_written(train, refused, tmp_path):
    (tmp_path / "file").write_text("x")
    for workdir, message in (
        ("TMP/file", "File exists; choose --workdir=DIR"),
        ("TMP/file/run", "Not a directory; choose --workdir=DIR"),
        ("TMP/" + "x" * 300, "File name too long; choose --workdir=DIR"),
        ("/proc/nowhere", "No such file or directory; choose --workdir=DIR"),
    ):
        refused(lambda workdir=workdir: train(DIGITS, *SMALL, f"--workdir={workdir}"), message)
    for data_dir, message in (
        ("TMP/file", "Cannot write the data set digits"),
        ("/proc/nowhere", "Cannot write the data set digits"),
        ("TMP/" + "x" * 300, "File name too long"),
    ):
        refused(lambda data_dir=data_dir: train(DIGITS, *SMALL, f"--config.dataset.data_dir={data_dir}"), message)


def test_a_run_to_start_from_that_is_none(train, refused, tmp_path, quadratic_run):
    (tmp_path / "file").write_text("x")
    for start, message in (
        ("TMP", "is not a run directory"),
        ("TMP/nowhere", "is not a run directory"),
        ("TMP/file", "is not a run directory"),
        (quadratic_run, "is another network: config.model."),
    ):
        refused(lambda start=start: train(DIGITS, *SMALL, f"--config.start.run={start}"), message)
