"""notebooks/your_own_pictures.ipynb runs from top to bottom; the assertions in its cells hold."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import execute, is_without_outputs, pictures_of, text_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "your_own_pictures.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_own_pictures_notebook_runs(tmp_path):
    notebook = execute(NOTEBOOK, tmp_path, EPOCHS="2")
    text = text_of(notebook)
    assert "of 10 classes, 8x8x1, mean 0.3" in text
    assert float(re.search(r"test accuracy ([\d.]+)%\n", text)[1]) > 30  # chance is 10%
    assert re.search(r"new\.png +(zero|one|two|three|four|five|six|seven|eight|nine) [\d.]+%", text)
    assert pictures_of(notebook) == 3


def test_own_pictures_notebook_is_saved_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert is_without_outputs(notebook)
