"""Signals that ask a run to stop."""

import os
import signal

import pytest

from attn_cnn_jax.training.distributed.agreement import stop_requests


@pytest.fixture
def handler():
    """Sets what happens at Ctrl-C, for the test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda action: signal.signal(signal.SIGINT, action)
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_does_what_the_first_would_have_done(handler, capsys):
    handler(signal.default_int_handler)
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop == {"signal": signal.SIGINT}
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert capsys.readouterr().out == "stopping after this step; once more to stop at once without saving\n"


def test_a_signal_that_was_ignored_at_the_start_stays_so(handler):
    """As `nohup` does for a terminal's end, and a script's `&` for Ctrl-C."""
    handler(signal.SIG_IGN)
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop == {"signal": 0}
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
