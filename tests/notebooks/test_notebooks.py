"""The notebooks run from top to bottom, where the assertions in their cells hold; and are saved with their outputs."""

import re
from pathlib import Path

import pytest

from attn_cnn_jax import train
from tests.support.digits_run import digits_config
from tests.support.notebooks import check_kept_outputs, execute, pictures_of, text_of

FOLDER = Path(__file__).parents[2] / "notebooks"
PICTURES = {"theorem": 6, "restore_a_run": 6, "your_own_images": 3, "your_network": 1}
slow = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", PICTURES)
def test_it_is_saved_with_the_outputs_of_its_sources(name):
    assert pictures_of(check_kept_outputs(FOLDER / f"{name}.ipynb")) == PICTURES[name]


def run(name, folder, smaller=(), **environment):
    """Everything that a notebook prints."""
    notebook = execute(FOLDER / f"{name}.ipynb", folder, smaller, **environment)
    assert pictures_of(notebook) == PICTURES[name]
    return text_of(notebook)


class TestTheyRun:
    pytestmark = slow

    def test_theorem(self, tmp_path):
        """With less training and fewer sizes: what is asserted of what is learned still holds."""
        smaller = [
            ("seed=0, num_steps=2000", "seed=1, num_steps=600"),  # of the students that need few steps
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

    def test_restore_a_run(self, one_device, data_dir, tmp_path):
        config = digits_config(data_dir)
        config.optimizer.update({"name": "muon", "learning_rate": 0.05})
        config.train.update({"batch_size": 48, "num_epochs": 4, "eval_every_epochs": 4})
        train(config, tmp_path / "run")
        text = run("restore_a_run", tmp_path, RUN=str(tmp_path / "run"))
        lost = re.search(r"most is lost without head \d of layer \d: ([\d.]+)% -> ([\d.]+)%", text)
        assert float(lost[1]) > max(30, float(lost[2]))  # it learned something, and a head matters
        assert re.search(r"[1-9]\d* of 355 predictions change", text)

    def test_your_own_images(self, tmp_path):
        size = "hidden_size=64, intermediate_size=128, num_layers=2"
        smaller = [(size, "hidden_size=32, intermediate_size=32, num_layers=1")]
        text = run("your_own_images", tmp_path, smaller, EPOCHS="2")
        assert "of 10 classes, 8x8x1, mean 0.3" in text
        assert float(re.search(r"test accuracy ([\d.]+)%\n", text)[1]) > 30  # chance is 10%
        assert re.search(r"new\.png +(zero|one|two|three|four|five|six|seven|eight|nine) [\d.]+%", text)
        starts = ("random start", "pretrained:digits")
        fresh, tuned = (float(re.search(rf"\n{name}: ([\d.]+)%", text)[1]) for name in starts)
        assert tuned > fresh
        assert "largest difference of the logits" in text or "writes ONNX" in text

    @pytest.mark.torch
    def test_your_network(self, tmp_path):
        """On random weights."""
        pytest.importorskip("timm")
        text = run("your_network", tmp_path)
        assert "attention over 14x14 patches, 4 images" in text
        assert re.search(r"\[\(0, 0\)\] \[1\. +0\. +0\. *\]", text)  # the planted head, found
