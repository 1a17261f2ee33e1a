"""Runs a notebook in a kernel of its own and says what came out."""

import os
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).parents[2]


def execute(path, folder, **environment):
    """Executes a notebook beside which no user's data or settings are touched; returns it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    environment = (
        os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TFDS_DATA_DIR": str(folder),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        | environment
    )
    nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3").execute(env=environment)
    return notebook


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(notebook):
    """All that was printed."""
    streams = [output for output in outputs(notebook) if output.output_type == "stream" and output.name == "stdout"]
    return "".join(output.text for output in streams)


def pictures_of(notebook):
    """How many pictures were drawn."""
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def is_without_outputs(notebook):
    return not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
