"""What every bad input must come to."""

import pytest

from attn_cnn_jax.errors import UserError


@pytest.fixture
def refused(capsys, tmp_path):
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
        assert found == status, f"{found}: {text}"
        assert message in text
        assert "Traceback" not in text
        assert 1 <= len(text.splitlines()) <= 2
        assert content(tmp_path) == before

    return check


def content(folder):
    """Every path below a folder with what lies there."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*") if path.name != ".lock"}
