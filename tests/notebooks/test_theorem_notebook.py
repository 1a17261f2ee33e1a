"""notebooks/theorem.ipynb runs from top to bottom; the assertions in its cells hold."""

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import execute, is_without_outputs, pictures_of, text_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "theorem.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_theorem_notebook_runs(tmp_path):
    notebook = execute(NOTEBOOK, tmp_path)
    text = text_of(notebook)
    assert "predictions agree on 100.0%" in text
    assert "first n layers replaced" in text
    assert pictures_of(notebook) == 5


def test_theorem_notebook_is_saved_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert is_without_outputs(notebook)
