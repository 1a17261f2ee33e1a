"""Pages of the networks that come along: they fit into the site, and answer as the networks do."""

import numpy as np
import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.page.build import build
from attn_cnn_jax.page.images import LabelledImage
from tests.page.browser import Page

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_answers_as_the_network(quiet, tmp_path, name):
    run = load_pretrained(name)
    shape = tuple(run.config.model.image_shape)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    html = build(run, [LabelledImage(pixels, "noise")], None, shape[:2], title=name).html
    (tmp_path / "page.html").write_text(html, "utf-8")
    page = Page(quiet, tmp_path / "page.html").open()
    expected = run.model(run.normalised(pixels[None]))[0][0]
    np.testing.assert_allclose(page.logits(), expected, atol=1e-4)
