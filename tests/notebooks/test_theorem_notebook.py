"""notebooks/theorem.ipynb runs from top to bottom; the assertions in its cells hold."""

import os
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "theorem.ipynb"


@pytest.mark.timeout(600)
def test_theorem_notebook_runs(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TFDS_DATA_DIR": str(tmp_path),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    client = nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3")
    client.execute(env=environment)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "predictions agree on 100.0%" in text
    assert "first n layers replaced" in text
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 5


def test_theorem_notebook_is_saved_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
