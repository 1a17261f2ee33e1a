"""Without PyTorch the rest of the package works, and the command says what is missing."""

import sys

import pytest

from attn_cnn_jax.cli.main import main


@pytest.mark.parametrize(
    "arguments", [("import", "file.pt", "--out=run"), ("export", "run", "--format=pytorch", "--out=file")]
)
def test_torch_is_asked_for_by_the_name_of_its_extra(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.pt").write_bytes(b"")
    assert main(list(arguments)) == 1
    assert "attn-cnn-jax[torch]" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]


def test_a_source_that_is_not_there_is_said_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["import", str(tmp_path / "exportd"), f"--out={tmp_path / 'run'}"]) == 1
    assert capsys.readouterr().err == f"there is no file or folder {tmp_path / 'exportd'}\n"
