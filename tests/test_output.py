"""Lines for the user, the errors that commands show, and the end of a process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attn_cnn_jax.errors import UserError, says_errors

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
        assert says_errors(fail)(error) == 1
        assert capsys.readouterr().err.startswith(said)
    with pytest.raises(ZeroDivisionError):
        says_errors(fail)(ZeroDivisionError())


PROCESS = """
import os, signal, sys
from attn_cnn_jax import output
from attn_cnn_jax.cli import main
from attn_cnn_jax.errors import says_errors
main.main = says_errors(lambda *_: {command})
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
