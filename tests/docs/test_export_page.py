"""The forward pass on the page "Export a network", from the arrays alone, is that of the network."""

import re
from pathlib import Path

import numpy as np
import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.runs.pretrained import FOLDER

PAGE = Path(__file__).parents[2] / "docs/export.md"


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_the_forward_pass_for_readers_of_arrays(name):
    values = {}
    exec(re.search(r"^```python\n# forward\.py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1], values)
    run = load_pretrained(name)
    images = np.random.default_rng(0).integers(0, 256, (3, *run.config.model.image_shape), np.uint8)
    np.testing.assert_allclose(values["logits"](FOLDER / name, images), run.logits(images), atol=1e-4)
