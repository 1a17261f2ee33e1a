"""Optional packages: without them the rest works, and the command says what is missing."""

import ast
import re
from pathlib import Path

import attn_cnn_jax
from attn_cnn_jax.cli.main import main


def test_import_asks_for_torch_by_how_to_install_it(tmp_path, capsys):
    (tmp_path / "file.pt").write_bytes(b"")
    assert main(["import", str(tmp_path / "file.pt"), "--config=digits", f"--out={tmp_path / 'run'}"]) == 1
    assert 'pip install -e ".[torch]"' in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]


def test_types_are_checked_where_optional_packages_are_not_installed():
    # CI installs PyTorch, a plain `make test` does not: there pyright would refuse an import that is not marked
    optional = re.compile(r"\s*(import|from) (torch|onnxruntime|jax2onnx|trackio|wandb)\b")
    files = list(Path(attn_cnn_jax.__file__).parent.rglob("*.py"))
    lines = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        lines += [line for node in nodes if optional.match(line := text.splitlines()[node.lineno - 1])]
    assert len(lines) >= 3, lines
    assert [line for line in lines if "# pyright: ignore[reportMissingImports]" not in line] == []


def test_no_text_advises_a_package_that_is_on_no_index():
    root = Path(attn_cnn_jax.__file__).parents[1]
    texts = [path for kind in ("attn_cnn_jax/**/*.py", "docs/*.md", "notebooks/*.ipynb") for path in root.glob(kind)]
    assert len(texts) > 50
    wrong = re.compile(r"pip (install|download)[^\n]*attn-cnn-jax\[")
    assert [path.name for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []
