"""The page of the shipped digits network: it answers as the network does, and reads what visitors draw."""

import numpy as np
import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.data.sources import load
from attn_cnn_jax.page.images import LabelledImage
from tests.page.browser import Page
from tests.page.conftest import written
from tests.support.drawings import drawings

pytestmark = pytest.mark.slow


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
    path = written(run, tmp_path / "page.html", scans)
    assert path.stat().st_size < 1.2e6
    page = Page(quiet, path).open()
    np.testing.assert_allclose(page.logits(), run.logits(scans[0].pixels[None])[0], atol=1e-4)
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
