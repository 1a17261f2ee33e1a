"""Pages of the networks that come along: they fit into the site, and answer as the networks do."""

import numpy as np
import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.data.sources import load
from attn_cnn_jax.page.build import build
from attn_cnn_jax.page.images import LabelledImage
from tests.page.browser import Page
from tests.support.drawings import drawings

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


DRAW = """\
((drawings, scale) => drawings.map((strokes) => {
  drawing.strokes = strokes.map((line) => line.map((place) => place.map((at) => at * INK_SIZE * scale)));
  scaleDrawing();
  return Array.from(bytesOf(data.pictures[drawing.index].image));
}))(...arguments)
"""


def test_hand_drawn_digits_are_read(quiet, tmp_path, data_dir):
    """A 7 without a bar was "3 (100%)", an 8 "0": 98 of 120 were right, and 120 are. A small drawing is as good."""
    run = load_pretrained("digits")
    scans = [LabelledImage(pixels, "test", "0") for pixels in load("digits", data_dir).test.images[:40]]
    (tmp_path / "page.html").write_text(build(run, scans, None, (8, 8), title="digits").html, "utf-8")
    page = Page(quiet, tmp_path / "page.html").open()
    page.find("#draw").click()
    page.all("#pictures button")[0].click()
    digits, strokes = zip(*drawings(), strict=True)
    strokes = [[line.tolist() for line in lines] for lines in strokes]
    images = np.array(page.run(DRAW, strokes, 1), np.uint8).reshape(-1, 8, 8, 1)
    assert (run.predict(images).argmax(axis=1) == digits).sum() >= 114
    small = np.array(page.run(DRAW, strokes[:3], 0.3), int)
    np.testing.assert_allclose(small, images[:3].reshape(3, -1), atol=2)
    dot = np.array(page.run(DRAW, [[[[0.5, 0.5], [0.5, 0.5001]]]], 1))
    assert np.count_nonzero(dot) <= 16
