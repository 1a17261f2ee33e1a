"""Optional packages: without them the rest works, and the command says what is missing."""

import re
from pathlib import Path

import attn_cnn_jax
from attn_cnn_jax.cli.main import main


def test_import_asks_for_torch_by_how_to_install_it(tmp_path, capsys):
    (tmp_path / "file.pt").write_bytes(b"")
    assert main(["import", str(tmp_path / "file.pt"), "--config=digits", f"--out={tmp_path / 'run'}"]) == 1
    assert 'pip install -e ".[torch]"' in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]


def test_no_text_advises_a_package_that_is_on_no_index():
    root = Path(attn_cnn_jax.__file__).parents[1]
    texts = [path for kind in ("attn_cnn_jax/**/*.py", "docs/*.md", "notebooks/*.ipynb") for path in root.glob(kind)]
    assert len(texts) > 50
    wrong = re.compile(r"pip (install|download)[^\n]*attn-cnn-jax\[")
    assert [path.name for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []
