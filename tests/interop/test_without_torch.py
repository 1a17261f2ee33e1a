"""Without PyTorch the rest of the package works, and the command says what is missing."""

import sys

import pytest

from attn_cnn_jax.interop import pytorch as interop


@pytest.mark.parametrize("arguments", [("file", "--out", "run"), ("run", "--to_pytorch", "file")])
def test_torch_is_asked_for_by_the_name_of_its_extra(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    assert interop.main(list(arguments)) == 1
    assert "attn-cnn-jax[torch]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
