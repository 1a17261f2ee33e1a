"""The command as a whole: its table, what it imports, every help with an example that works, hyphens in all flags."""

import configparser
import itertools
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax.cli.main import SUBCOMMANDS, main, run
from attn_cnn_jax.errors import command_line

ROOT = Path(__file__).parents[2]


def test_the_table_names_every_file_of_the_folder(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    files = {path.stem.strip("_") for path in (ROOT / "attn_cnn_jax/cli").glob("*.py")}
    assert set(SUBCOMMANDS) == files - {"init", "main", "arguments", "configs", "drawing"}
    assert all(re.search(rf"^  {name} +\w", text, re.MULTILINE) for name in SUBCOMMANDS)
    assert main([]) == 2
    assert capsys.readouterr().out == text
    for name, said in (("compre", "did you mean compare?"), ("--config=digits", "allowed first is one of train, ")):
        assert main([name]) == 2
        assert f"attn-cnn: unknown subcommand {name!r}: {said}" in capsys.readouterr().err


def test_only_what_a_subcommand_needs_is_imported():
    code = "import sys; from attn_cnn_jax.cli.main import main; main(sys.argv[1:]); print(*sys.modules, sep='\\n')"
    for argv, others in (["--help"], {"numpy"}), (["prepare", "--help"], set()):
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, cwd=ROOT)
        modules = set(done.stdout.splitlines())
        assert not modules & {"jax", "matplotlib", "tensorflow_datasets", *others}
        ours = {name.removeprefix("attn_cnn_jax.cli.") for name in modules if name.startswith("attn_cnn_jax.cli.")}
        assert {"main"} <= ours <= {"main", "arguments", argv[0]}
    for argv in (
        *(["page", "--help"], ["figures", "--help"], ["train", "--help"]),
        ["train", "--config=digits", "--config.model.num_head=3"],
        ["heads", "not_a_run"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, cwd=ROOT)
        assert not {"jax", "flax", "matplotlib"} & {*done.stdout.split()}, argv


def test_help_ends_with_an_example_and_writes_flags_with_hyphens(capsys):
    for name in SUBCOMMANDS:
        assert main([name, "--help"]) == 0
        text = capsys.readouterr().out
        module = import_module(f"attn_cnn_jax.cli.{'import_' if name == 'import' else name}")
        assert text.rstrip().splitlines()[-2:] == ["example:", f"  {command_line(name, *module.EXAMPLE.split())}"]
        assert re.findall(r"--\w+", text)
        assert not re.findall(r"--\w*_[\w-]*", text)


def test_the_examples_work_as_they_stand(quadratic_run, tmp_path, data_dir, monkeypatch):
    """In the order of a first day with a run; training is tested in test_train.py."""
    shutil.copytree(quadratic_run, tmp_path / "runs/digits")
    Image.fromarray(np.full((20, 30), 128, np.uint8)).save(tmp_path / "image.png")
    for name, n in itertools.product(("cat", "dog"), range(5)):
        (tmp_path / "images/train" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "image.png", tmp_path / f"images/train/{name}/{n}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    for name in ("prepare", "predict", "figures", "heads", "page", "convolution", "summary", "export", "compare"):
        example = import_module(f"attn_cnn_jax.cli.{name}").EXAMPLE
        assert main([name, *shlex.split(example)]) == 0, name
    written = {path.name for path in tmp_path.iterdir()}
    assert {"figures", "heads.csv", "page.html", "convolution", "exported", "comparison"} <= written


def test_the_console_script_and_train_py_are_this_program(monkeypatch, tmp_path, capsys):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options.entry_points"]["console_scripts"].strip() == f"attn-cnn = {run.__module__}:{run.__name__}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--config=digits", "--config.train.batch_size=-1"])
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match=r"^1$"):
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
    signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err.startswith("config.train.batch_size=-1: allowed is")


def test_advised_commands_run_from_where_the_user_is(tmp_path, monkeypatch):
    """On the PATH by its name, in an environment that is not activated by its path, else through Python."""
    scripts = tmp_path / ".venv/bin"
    scripts.mkdir(parents=True)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(scripts))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert command_line("page", "my runs") == f"{shlex.quote(sys.executable)} -m attn_cnn_jax page 'my runs'"
    (scripts / "attn-cnn").touch(0o755)
    assert command_line("page", "runs/digits") == ".venv/bin/attn-cnn page runs/digits"
    monkeypatch.setenv("PATH", str(scripts))
    assert command_line("page", "runs/digits") == "attn-cnn page runs/digits"
