"""Pages of the networks that come along: they fit into the site, and answer as the networks do; `-s` prints times."""

import statistics

import numpy as np
import pytest

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.page.build import build
from attn_cnn_jax.page.images import LabelledImage
from attn_cnn_jax.page.render import write
from tests.page.browser import Page

pytestmark = pytest.mark.slow
CLASSIFICATIONS = 20  # whose median time is printed

CLASSIFY = """
const done = arguments[0];
classify().then(() => done(viewer.milliseconds()));
"""


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_answers_as_the_network(quiet, tmp_path, name):
    run = load_pretrained(name)
    shape = tuple(run.config.model.image_shape)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    html = build(run, [LabelledImage(pixels, "noise")], None, shape[:2], title=name).html
    write(tmp_path / "page.html", html)
    page = Page(quiet, tmp_path / "page.html").open()
    expected = run.model(run.normalised(pixels[None]))[0][0]
    difference = np.abs(np.array(page.run("viewer.logits()")) - expected).max()
    first = page.run("viewer.milliseconds()")
    times = [page.driver.execute_async_script(CLASSIFY) for _ in range(CLASSIFICATIONS)]
    print(
        f"{name}: {len(html.encode()) / 1e6:.2f} MB, largest difference of logits {difference:.1e}, first "
        f"classification {first:.0f} ms, then {statistics.median(times):.0f} ms"
    )
    assert difference < 1e-4
