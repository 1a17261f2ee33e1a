"""notebooks/your_network.ipynb runs from top to bottom on random weights, where timm is installed."""

import re
from pathlib import Path

import pytest

from tests.support.notebooks import check_kept_outputs, execute, text_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "your_network.ipynb"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_your_network_notebook_runs(tmp_path):
    pytest.importorskip("timm")
    text = text_of(execute(NOTEBOOK, tmp_path))
    assert "attention over 14x14 patches, 4 images" in text
    assert re.search(r"\[\(0, 0\)\] \[1\. +0\. +0\. *\]", text)  # the planted head, found


def test_your_network_notebook_is_saved_with_the_outputs_of_its_sources():
    check_kept_outputs(NOTEBOOK)
