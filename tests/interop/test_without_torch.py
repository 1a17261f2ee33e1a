"""Without PyTorch the rest of the package works, and the command says what is missing."""

import sys

import pytest

from attn_cnn_jax.cli.main import main


@pytest.mark.parametrize(
    "arguments", [("import", "file", "--out=run"), ("export", "run", "--format=pytorch", "--out=file")]
)
def test_torch_is_asked_for_by_the_name_of_its_extra(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 1
    assert "attn-cnn-jax[torch]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
