"""notebooks/theorem.ipynb runs from top to bottom; the assertions in its cells hold."""

from pathlib import Path

import pytest

from tests.support.notebooks import check_kept_outputs, execute, pictures_of, text_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "theorem.ipynb"
# Less training and fewer sizes: what is asserted of what is learned still holds.
SMALLER = [
    ("seed=0, num_steps=2000", "seed=1, num_steps=600"),  # of the students that need few steps
    ("(1.0, 3.0, 10.0)", "(1.0,)"),
    ("(0.5, 30, 24)", "(0.5, 30, 6)"),
    ("width=16", "width=4"),
    ("hidden_size=32, intermediate_size=64, num_layers=2", "hidden_size=16, intermediate_size=16, num_layers=1"),
    ('"num_epochs": 6', '"num_epochs": 1'),
    ("(1, 3, 5, 7, 15)", "(1, 15)"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_theorem_notebook_runs(tmp_path):
    notebook = execute(NOTEBOOK, tmp_path, SMALLER)
    text = text_of(notebook)
    assert "predictions agree on 100.0%" in text
    assert "first n layers replaced" in text
    assert "distance from Lemma 3" in text
    assert pictures_of(notebook) == 6


def test_theorem_notebook_is_saved_with_the_outputs_of_its_sources():
    assert pictures_of(check_kept_outputs(NOTEBOOK)) == 6
