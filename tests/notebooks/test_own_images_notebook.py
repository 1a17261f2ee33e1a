"""notebooks/your_own_images.ipynb runs from top to bottom; the assertions in its cells hold."""

import re
from pathlib import Path

import pytest

from tests.support.notebooks import check_kept_outputs, execute, pictures_of, text_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "your_own_images.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_own_pictures_notebook_runs(tmp_path):
    size = "hidden_size=64, intermediate_size=128, num_layers=2"
    smaller = [(size, "hidden_size=32, intermediate_size=32, num_layers=1")]
    notebook = execute(NOTEBOOK, tmp_path, smaller, EPOCHS="2")
    text = text_of(notebook)
    assert "of 10 classes, 8x8x1, mean 0.3" in text
    assert float(re.search(r"test accuracy ([\d.]+)%\n", text)[1]) > 30  # chance is 10%
    assert re.search(r"new\.png +(zero|one|two|three|four|five|six|seven|eight|nine) [\d.]+%", text)
    assert pictures_of(notebook) == 3
    starts = ("random start", "pretrained:digits")
    fresh, tuned = (float(re.search(rf"\n{name}: ([\d.]+)%", text)[1]) for name in starts)
    assert tuned > fresh
    assert "largest difference of the logits" in text or "writes ONNX" in text


def test_own_pictures_notebook_is_saved_with_the_outputs_of_its_sources():
    assert pictures_of(check_kept_outputs(NOTEBOOK)) > 0
