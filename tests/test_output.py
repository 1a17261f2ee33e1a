"""Lines for the user: whatever becomes of the streams, what is at work goes on."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attn_cnn_jax import output
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.errors import UserError, says_errors
from attn_cnn_jax.training.reporter import Terminal

ROOT = Path(__file__).parents[1]
RECORD = {"step": 10, "epoch": 1.0, "split": "train", "loss": 1.0, "accuracy": 0.5}


def no_reader():
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def closed():
    file = open(os.devnull, "w")  # noqa: SIM115
    file.close()
    return file


def full():
    return open("/dev/full", "w")


STREAMS = {"no reader": no_reader, "full": full, "closed": closed, "none": lambda: None}


@pytest.fixture(params=STREAMS)
def stdout(request, monkeypatch):
    stream = STREAMS[request.param]()
    monkeypatch.setattr(sys, "stdout", stream)
    yield stream
    if stream is not None:
        stream.close()  # does not raise: nothing is left to be written


def test_training_goes_on_without_standard_output(stdout):
    terminal = Terminal(0, 40, 10)
    for _ in range(3):
        output.say("a line")
        terminal.say(RECORD)
    terminal.close()


def test_training_goes_on_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    Terminal(0, 40, 10).advance(10)


def test_training_goes_on_when_the_terminal_of_its_bar_is_gone(monkeypatch):
    """Writing to the terminal of a connection that broke off is an input/output error; the bar's lines go to stdout."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, no_reader() as stdout:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", stdout)
        bar = Terminal(0, 40, 10)
        bar.advance(10)
        os.close(ours)
        for step in (20, 30):
            bar.say(RECORD | {"step": step})
            bar.say(RECORD | {"step": step, "split": "test"})
        bar.close()
        output.say("the end")
        output.drop(terminal)


def table(rows):
    def run():
        for _ in range(rows):
            print("a row of a table")
        return 0

    return says_errors(run)


@pytest.mark.parametrize("rows", [1, 10_000])  # of which the first are written as they end, the others before
@pytest.mark.parametrize(
    ("stream", "status", "said"),
    [
        (no_reader, 128 + signal.SIGPIPE, ""),
        (full, 1, "No space left on device"),
    ],
)
def test_a_command_whose_output_nobody_takes_ends(monkeypatch, capsys, rows, stream, status, said):
    with stream() as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert table(rows)() == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", [False, True])  # as with PYTHONUNBUFFERED
@pytest.mark.parametrize("arguments", [["--help"], ["heads", "--help"]])
def test_a_full_disk_below_standard_output_is_not_blamed_on_anything_else(monkeypatch, capsys, arguments, unbuffered):
    with io.TextIOWrapper(open("/dev/full", "wb", 0), write_through=unbuffered) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(arguments) == 1
    assert capsys.readouterr().err == "standard output: No space left on device\n"


def test_closed_streams_do_not_give_their_numbers_to_files(tmp_path):
    """Whoever prints to number 2 would print into the next file that was opened."""
    code = (
        "import os, sys; from attn_cnn_jax import output; output.open_streams();"
        "file = open(sys.argv[1], 'w'); os.write(1, b'x'); os.write(2, b'x'); print('x'); print('x', file=sys.stderr);"
        "file.write(str(file.fileno())); file.close()"
    )
    closed = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"]
    command = [*closed, sys.executable, "-c", code, str(tmp_path / "file")]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "file").read_text() == "3"


def test_characters_that_a_stream_lacks_are_escapes(monkeypatch, tmp_path):
    with open(tmp_path / "out", "w", encoding="latin-1") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        output.open_streams()
        output.say("ü Ж")
    assert (tmp_path / "out").read_bytes() == b"\xfc \\u0416\n"


def test_control_characters_are_shown_and_not_obeyed(capsys):
    def refuse():
        raise UserError("config.\x1b]0;title\x07=\x9b2J\r: ± é\nsecond line")

    assert says_errors(refuse)() == 1
    assert capsys.readouterr().err == "config.\\x1b]0;title\\x07=\\x9b2J\\r: ± é\nsecond line\n"
    assert main(["train", "--\x1b[2J=1"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_interrupting_a_command_is_no_mistake_of_the_program(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert says_errors(interrupted)() == 128 + signal.SIGINT
    assert capsys.readouterr().err == "interrupted\n"


def test_a_current_folder_that_was_removed_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["train", "--config=digits", "--workdir=run"]) == 1
    assert capsys.readouterr().err == "the current folder is no longer there: change to another\n"


def test_a_platform_that_is_not_there_is_named(monkeypatch, capsys):
    def start():
        raise RuntimeError("Unable to initialize backend 'cuda': no GPU\nmore")

    with monkeypatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cuda")
        assert says_errors(start)() == 1
    assert capsys.readouterr().err.startswith("JAX_PLATFORMS=cuda: Unable to initialize backend 'cuda': no GPU\nset it")
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(RuntimeError):
        says_errors(start)()
