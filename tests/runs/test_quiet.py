"""TensorStore's threads report what fails beside a failure where nobody can catch it, often after it was said."""

import sys
from types import SimpleNamespace

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.runs import checkpoints as ckpt

LATE, OTHER = (SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "another"))


@pytest.fixture
def printed(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    return printed


def report_both():
    sys.unraisablehook(LATE)
    sys.unraisablehook(OTHER)


def test_reads_beside_a_failed_one_end_silently(printed):
    def restore(*arguments, **keywords):
        raise OSError("cut short")

    for _ in range(2):
        with pytest.raises(ckpt.Damaged, match="cut short"):
            ckpt.read_plain(SimpleNamespace(restore=restore, directory="run/checkpoints"), 3, "config")
    report_both()
    assert printed == [OTHER]


def test_writes_beside_a_failed_one_end_silently(printed, tmp_path):
    with ckpt.saving(tmp_path, attention_config(), steps_per_epoch=1):
        report_both()
    report_both()
    assert printed == [OTHER, OTHER]
