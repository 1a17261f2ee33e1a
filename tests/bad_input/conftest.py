"""What every bad input must come to; `pytest -v tests/bad_input` ends with the list of messages."""

import hashlib

import pytest

from attn_cnn_jax.errors import UserError


@pytest.fixture
def refused(capsys, tmp_path, record_property):
    """`refused(call, message, status=1)`: the call is refused with this message, in a line or two, and writes nothing.

    A call is a command's `main`, which returns its exit status, or a function that raises UserError.
    """

    def check(call, message, status=1):
        before = content(tmp_path)
        capsys.readouterr()
        try:
            found = call()
            text = capsys.readouterr().err
        except UserError as error:
            found, text = 1, str(error)
        except SystemExit as stop:  # of argparse, after its usage
            found, text = stop.code, capsys.readouterr().err.splitlines()[-1]
        assert found == status, f"{found}: {text}"
        assert message in text
        assert "Traceback" not in text
        assert 1 <= len(text.splitlines()) <= 2
        assert content(tmp_path) == before
        record_property("said", text.replace(str(tmp_path), "...").strip())

    return check


def content(folder):
    """Every path below a folder with a hash of what lies there."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
        if path.name not in (".lock",)
    }


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.config.option.verbose < 1:
        return
    terminalreporter.section("bad input and what is said")
    for report in terminalreporter.getreports("passed"):
        if said := dict(report.user_properties).get("said"):
            name = report.nodeid.rpartition("::")[2].removeprefix("test_")
            terminalreporter.line(f"{name}\n    " + said.replace("\n", "\n    "))
