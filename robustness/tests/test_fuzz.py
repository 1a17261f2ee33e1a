"""Every case that counts as failed is printed with its number and why."""

import time
from types import SimpleNamespace

import pytest

from attn_cnn_jax.errors import UserError
from robustness import fuzz


def says_too_much(folder, generator):
    raise UserError("one\ntwo\nthree")


def breaks(folder, generator):
    raise KeyError("lost")


def works(folder, generator):
    pass


@pytest.mark.parametrize(
    ("case", "most_seconds", "said"),
    [
        (says_too_much, 20, "says_too_much 0: 3 lines: 'one\\ntwo\\nthree'"),
        (breaks, 20, "breaks 0: KeyError: 'lost'"),
        (works, 0, "works 0: took "),
        (works, 20, ""),
    ],
)
def test_what_failed_is_printed(case, most_seconds, said, monkeypatch, capsys):
    monkeypatch.setattr(fuzz, "SECONDS", most_seconds)
    clock = iter((0.0, 1.0, 3.0))  # one case, and then the time is over
    fake = SimpleNamespace(monotonic=lambda: next(clock), process_time=time.process_time)
    monkeypatch.setattr(fuzz, "time", fake)
    row = fuzz.fuzz(case, 2.0, seed=0)
    assert (row["cases"], row["failed"]) == (1, int(bool(said)))
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert len(error.splitlines()) == int(bool(said))
