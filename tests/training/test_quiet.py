import sys
from types import SimpleNamespace

import pytest

from attn_cnn_jax.training import checkpoints as ckpt


def test_after_a_failed_read_those_beside_it_end_silently(monkeypatch):
    """TensorStore's threads report them where nobody can catch them, sometimes after the error was said."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    late, other = (SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "another"))

    def restore(*arguments, **keywords):
        raise OSError("cut short")

    for _ in range(2):
        with pytest.raises(ckpt.Damaged, match="cut short"):
            ckpt.read_plain(SimpleNamespace(restore=restore, directory="run/checkpoints"), 3, "config")
    sys.unraisablehook(late)
    sys.unraisablehook(other)
    assert printed == [other]
