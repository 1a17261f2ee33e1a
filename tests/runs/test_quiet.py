"""Orbax's and TensorStore's threads report what fails beside a failure where nobody can catch it: that is not shown."""

import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from orbax.checkpoint import CheckpointManager

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.runs import checkpoints as ckpt

LATE, OTHER = (
    SimpleNamespace(exc_value=RuntimeError(text), object=None) for text in ("Event loop is closed", "another")
)
DROPPED, OTHERS_DROPPED = (
    SimpleNamespace(
        exc_value=RuntimeError("another"), object=SimpleNamespace(cr_code=SimpleNamespace(co_filename=path))
    )
    for path in ("/lib/orbax/checkpoint/serialization.py", "/lib/mine.py")
)


@pytest.fixture
def printed(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    return printed


def report_all():
    for unraisable in (LATE, DROPPED, OTHER, OTHERS_DROPPED):
        sys.unraisablehook(unraisable)


def test_reads_beside_a_failed_one_end_silently(printed):
    def restore(*arguments, **keywords):
        raise OSError("cut short")

    for _ in range(2):
        with pytest.raises(ckpt.Damaged, match="cut short"):
            ckpt.read_plain(Mock(CheckpointManager, restore=restore, directory="run/checkpoints"), 3, "config")
    report_all()
    assert printed == [OTHER, OTHERS_DROPPED]


def test_writes_beside_a_failed_one_end_silently(printed, tmp_path):
    with ckpt.saving(tmp_path, attention_config(), steps_per_epoch=1):
        report_all()
    report_all()
    assert printed == [OTHER, OTHERS_DROPPED] * 2
