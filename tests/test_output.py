"""Lines for the user, the errors that commands show, the end of a process; files are written whole or not at all."""

import importlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attn_cnn_jax.errors import UserError, exits_with_messages
from attn_cnn_jax.files import new_folder, replacing, write_atomically
from attn_cnn_jax.output import silence_echoes

ROOT = Path(__file__).parents[1]


def test_what_a_user_can_fix_is_shown_with_status_1_and_mistakes_keep_their_traceback(capsys):
    """Control characters, as names may have, are shown and not obeyed."""

    def fail(error):
        raise error

    for error, said in (
        (UserError("two\nlines"), "two\nlines\n"),
        (FileNotFoundError(2, "No such file or directory", "a/b"), "a/b: No such file or directory\n"),
        (OSError(28, "No space left on device"), "No space left on device\n"),
        (MemoryError("Unable to allocate 9 TB"), "not enough memory: Unable to allocate 9 TB\nchoose a smaller"),
        (RuntimeError("RESOURCE_EXHAUSTED: out of it"), "not enough memory: RESOURCE_EXHAUSTED: out of it\n"),
        (UserError("caf\u00e9 \x1b[2J\r\x9b\x7f\u202e\udcff"), "caf\u00e9 \\x1b[2J\\r\\x9b\\x7f\\u202e\\udcff\n"),
    ):
        assert exits_with_messages(fail)(error) == 1
        assert capsys.readouterr().err.startswith(said)
    with pytest.raises(ZeroDivisionError):
        exits_with_messages(fail)(ZeroDivisionError())


def test_what_orbax_logs_and_raises_too_is_silent_and_what_others_log_is_not(monkeypatch, caplog):
    """Whatever class the logger has: absl's, or the plain one that is there before absl is imported."""
    absl, logger = importlib.import_module("absl.logging"), logging.getLogger("absl")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logging.getLogger("asyncio"), "filters", [])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    silence_echoes()
    for kind in (logging.Logger, type(logger)):
        monkeypatch.setattr(logger, "__class__", kind)
        for folder in ("orbax", "others"):
            path = os.path.join(os.sep, "site-packages", folder, "checkpoint.py")
            exec(compile("log(folder)", path, "exec"), {"log": absl.error, "folder": folder})
    assert [record.message for record in caplog.records] == ["others"] * 2


PROCESS = """
import os, signal, sys
from attn_cnn_jax import output
from attn_cnn_jax.cli import main
from attn_cnn_jax.errors import exits_with_messages
main.main = exits_with_messages(lambda *_: {command})
main.run()
"""


def process(command, start="", **environment):
    """Runs a command as `attn-cnn` does, in a shell; returns exit status, standard output and error as bytes."""
    program = PROCESS.format(command=command)
    done = subprocess.run(
        ["sh", "-c", f'{start or "exec"} "$@"', "sh", sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


INTERRUPT = "os.kill(os.getpid(), signal.SIGINT) or 3"


def test_characters_that_an_output_lacks_are_escapes():
    for environment, expected in (
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, b"\\xfc \\u0416 \\udcff\n"),
        ({"PYTHONUTF8": "1"}, "ü Ж \\udcff\n".encode()),
    ):
        assert process("output.say('\\u00fc \\u0416 ' + chr(0xdcff)) or 0", **environment) == (0, expected, b"")


def test_ctrl_c_ends_a_process_without_a_traceback_unless_it_is_ignored():
    status, out, err = process(INTERRUPT, "exec env --default-signal=INT")
    assert (status, out, err) == (-signal.SIGINT, b"", b"")
    assert process(INTERRUPT, "exec env --ignore-signal=INT")[0] == 3


def test_a_process_ends_well_where_nobody_reads():
    status, _, err = process("[output.say('x' * 1000) for _ in range(1000)] and 0", 'f() { "$@" | head -c 1; }; f')
    assert (status, err) == (0, b"")


def test_a_file_is_replaced_at_once_or_stays_and_an_error_names_it(tmp_path):
    """A link is replaced, and what it points to stays."""
    path, link = tmp_path / "file", tmp_path / "link"
    write_atomically(path, "old é")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:  # noqa: PT012
        file.write(b"half of the new")
        raise ZeroDivisionError
    assert path.read_text(encoding="utf-8") == "old é"
    link.symlink_to(path)
    write_atomically(link, b"new")
    assert (path.read_text(encoding="utf-8"), link.read_bytes()) == ("old é", b"new")
    assert {*os.listdir(tmp_path)} == {"file", "link"}
    with pytest.raises(OSError) as error:  # noqa: PT011
        write_atomically(tmp_path / "no/file", "")
    assert str(error.value.filename) == str(tmp_path / "no/file")


def test_a_file_keeps_its_permissions_and_a_pipe_stays_one(tmp_path, capfd, monkeypatch):
    path, pipe = tmp_path / "file", tmp_path / "pipe"
    path.touch()
    path.chmod(0o640)
    write_atomically(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    monkeypatch.setattr(os, "replace", None)
    write_atomically("/dev/stdout", "where a link to a file is")  # as capfd has it
    assert capfd.readouterr().out == "where a link to a file is"


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "a/b") as folder:  # noqa: PT012
        (folder / "x").write_text("x")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "a/b") as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "a/b").exists()
    assert os.listdir(tmp_path / "a") == ["b"]
    with pytest.raises(OSError), new_folder(tmp_path / "a/b"):  # noqa: PT011
        pass
    assert (tmp_path / "a/b/x").read_text() == "x"
