"""Without PyTorch the rest of the package works, and the command says what is missing."""

import ast
import re
from pathlib import Path

import pytest

import attn_cnn_jax
from attn_cnn_jax.cli.main import main


@pytest.mark.parametrize(
    "arguments", [("import", "file.pt", "--out=run"), ("export", "run", "--format=pytorch", "--out=file")]
)
def test_torch_is_asked_for_by_the_name_of_its_extra(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.pt").write_bytes(b"")
    assert main(list(arguments)) == 1
    assert "attn-cnn-jax[torch]" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]


def test_a_source_that_is_not_there_is_said_first(tmp_path, capsys):
    assert main(["import", str(tmp_path / "exportd"), f"--out={tmp_path / 'run'}"]) == 1
    assert capsys.readouterr().err == f"there is no file or folder {tmp_path / 'exportd'}\n"


def imports(path):
    """The lines of a file that import something, with their comments."""
    text = path.read_text(encoding="utf-8")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [text.splitlines()[node.lineno - 1] for node in nodes]


def test_types_are_checked_where_optional_packages_are_not_installed():
    # CI installs PyTorch, a plain `make test` does not: there pyright would refuse an import that is not marked
    optional = re.compile(r"\s*(import|from) (torch|onnxruntime|jax2onnx|trackio|wandb)\b")
    files = Path(attn_cnn_jax.__file__).parent.rglob("*.py")
    lines = [line for path in files for line in imports(path) if optional.match(line)]
    assert len(lines) >= 9, lines
    assert [line for line in lines if "# pyright: ignore[reportMissingImports]" not in line] == []
