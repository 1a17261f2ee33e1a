"""The command as a process: Ctrl-C at any moment, errors while threads of libraries still wait."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_IGNORED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def run(code, *paths):
    """Runs Python code as a process that Ctrl-C has not been ignored for; returns status and standard error."""
    ours = os.pathsep.join(map(str, (ROOT, *paths)))
    done = subprocess.run(
        [sys.executable, "-c", NOT_IGNORED + textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": ours},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


COMMAND = """
    import os, signal, sys, threading
    from attn_cnn_jax.cli.program import exit_after
    from attn_cnn_jax.errors import says_errors

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
"""
WAITING = "threading.Thread(target=threading.Event().wait).start()"  # for ever: Python would not leave without it


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("return 1", 1, ""),
        ("interrupt()", 130, "interrupted\n"),
    ],
)
def test_an_end_waits_for_no_thread(ends, status, said):
    code = f"""
    @says_errors
    def command():
        {WAITING}
        {ends}

    exit_after(lambda main: command())
    """
    assert run(COMMAND + code) == (status, said)


def test_interrupting_an_import_leaves_at_once(tmp_path):
    """Where a C library is being imported, an exception ends in the library's own traceback, or in a crash."""
    (tmp_path / "slow.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException as error:\n    raise ImportError('while initializing the extension') from error\n"
    )
    assert run(f"{COMMAND}\n    exit_after(lambda main: __import__('slow'))", tmp_path) == (130, "interrupted\n")


def test_an_interruption_that_python_drops_comes_again():
    """As JAX's callback of garbage collection drops it: Python would print a traceback and go on."""
    code = """
    import gc, time

    @says_errors
    def command():
        gc.callbacks.append(lambda *_: interrupt())
        gc.collect()
        gc.callbacks.clear()
        time.sleep(30)

    exit_after(lambda main: command())
    """
    assert run(COMMAND + code) == (130, "interrupted\n")


def test_interrupting_twice_leaves_at_once():
    code = """
    @says_errors
    def command():
        try:
            interrupt()
        finally:
            interrupt()
            threading.Event().wait()

    exit_after(lambda main: command())
    """
    assert run(COMMAND + code) == (130, "interrupted\n")


def test_a_full_disk_below_standard_error_does_not_change_the_status():
    """Python makes 120 of it as it shuts down."""
    code = """
    def refuse():
        sys.stderr = open("/dev/full", "w")
        print("wrong flags", file=sys.stderr)
        return 2

    exit_after(lambda main: refuse())
    """
    assert run(COMMAND + code)[0] == 2


def test_ctrl_c_that_is_ignored_stays_so():
    code = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_after(lambda main: interrupt() or 0)
    """
    assert run(COMMAND + code) == (0, "")
