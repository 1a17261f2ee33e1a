"""What `attn-cnn train` refuses: flags, configuration files, folders; tests/config has the values one by one."""

import socket

import pytest

from attn_cnn_jax.cli.main import main

DIGITS = "--config=digits"
SMALL = ("--config.model.hidden_size=8", "--config.model.num_layers=1", "--config.train.batch_size=80")


@pytest.fixture
def train(monkeypatch, tmp_path, data_dir):
    """Runs `attn-cnn train` in this process with a workdir below `tmp_path`."""

    def start(*argv):
        usual = [f"--workdir={tmp_path / 'run'}", *[f"--config.dataset.data_dir={data_dir}"] * (DIGITS in argv)]
        return main(["train", *usual, *(argument.replace("TMP", str(tmp_path)) for argument in argv)])

    return start


TOGETHER = (DIGITS, "--multihost", "--coordinator-address=127.0.0.1:1")
REFUSED = [
    ((), 2, "are required: --config"),
    ((DIGITS, "--multihost", "--coordinator-address=h:99999"), 2, "'h:99999': allowed is HOST:PORT"),
    ((DIGITS, "--process-id=1"), 2, "--process-id need --multihost"),
    *(((DIGITS, f"--seeds={text}"), 2, "--seeds") for text in ("4-0", "1,1", "-1", "")),
    ((DIGITS, "--seeds=0", "--config.seed=3"), 2, "leave out --config.seed"),
    ((*TOGETHER, "--num-processes=2", "--process-id=2"), 1, "--process-id=2: allowed is an integer from 1, and one"),
    ((DIGITS, "--config.model.content", "False"), 1, "config.model.content has no value"),
    ((DIGITS, "--config.model.num_heds=3"), 1, "did you mean config.model.num_heads?"),
    ((DIGITS, "--config.model=3"), 1, "config.model is no single value: set one of its keys"),
    ((DIGITS, "--config.seed=1e999"), 1, "config.seed='1e999': allowed is an integer from 0"),
    ((DIGITS, "--config.model.encoding=absolute_sinusoidal", "--config.model.hidden_size=6"), 1, "a multiple of 4"),
    ((DIGITS, "--config.model.hidden_size=100000"), 1, "GB with gradient and momentum"),
    ((DIGITS, "--config.train.batch_size=8000"), 1, "together they must not exceed 2,884"),
    (("--config=nowhere.py",), 1, "there is no config file nowhere.py"),
    ((DIGITS, *SMALL, "--config.start.run=TMP"), 1, "is not a run directory"),
    ((DIGITS, *SMALL, "--workdir=/proc/nowhere"), 1, "No such file or directory; choose --workdir=DIR"),
]


def test_what_is_refused(train, refused):
    for argv, status, message in REFUSED:
        refused(lambda argv=argv: train(*argv), message, status)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        flags = ("--multihost", f"--coordinator-address={address}", "--num-processes=2", "--process-id=0")
        refused(lambda: train(DIGITS, *flags), f"{address}: process 0 cannot listen there: Address already in use")


IMPORT = "from attn_cnn_jax.config import attention_config\ndef get_config():\n    config = attention_config()\n"
FILES = [
    ("Dear reader", "SyntaxError"),
    ("def get_config(): raise ValueError('of mine\\nand more')", "cannot be loaded: ValueError: of mine"),
    ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ("def get_config(): return {}", "must return an ml_collections.ConfigDict"),
    (f"{IMPORT}    del config.train\n    return config", "config.train.batch_size is missing"),
]


def test_a_config_file_that_is_none(train, refused, tmp_path):
    for text, message in FILES:
        (tmp_path / "mine.py").write_text(text)
        refused(lambda: train("--config=TMP/mine.py"), message)
