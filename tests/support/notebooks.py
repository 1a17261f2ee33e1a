"""Runs a notebook in a kernel of its own and says what came out, and what is kept in it."""

import importlib.util
import os
import re
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).parents[2]


def execute(path, folder, smaller=(), **environment):
    """Executes a notebook beside which no user's data or settings are touched; returns it with its outputs.

    `smaller`: pairs of an assignment in its code, which stands there once, and what takes its place.
    """
    notebook = nbformat.read(path, as_version=4)
    for text, other in smaller:
        (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source)
        assert cell.source.count(text) == 1
        cell.source = cell.source.replace(text, other)
    environment = (
        os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")),
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


def check_kept_outputs(path):
    """Asserts that a notebook is saved with the outputs of its sources, whole and small."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    specification = importlib.util.spec_from_file_location("run_notebooks", path.parent / "run.py")
    run_notebooks = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(run_notebooks)
    assert notebook.metadata.sources == run_notebooks.digest(notebook), "stale outputs: make notebooks"
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert {output.output_type for output in outputs(notebook)} <= {"stream", "display_data", "execute_result"}
    assert not any(output.get("name") == "stderr" for output in outputs(notebook))
    assert path.stat().st_size < 400_000
    return notebook
