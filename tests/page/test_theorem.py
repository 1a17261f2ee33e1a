"""Theorem 1 on the page: nine heads are a convolution, and a filter needs one head or two; as the package says."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import reference
from attn_cnn_jax.theorem.rank import heads_needed
from attn_cnn_jax.theorem.to_attention import conv_to_attention
from tests.page.browser import ActionChains, Keys
from tests.page.conftest import GRID

pytestmark = pytest.mark.slow


def test_terms_of_one_colour_are_one_head_and_its_entry(open_page, images):
    page = open_page("#picture=2&query=0,6")  # at the border: zeros
    page.run("setTheorem({ kernel: [1, 2, 3, 4, 5, 6, 7, 8, 9] })")
    page.wait(
        lambda: page.run("[...document.querySelectorAll('#sum-of-heads span')].at(-1)?.textContent ?? ''").endswith(
            "9.00"
        )
    )
    x = np.pad(images[2].mean(axis=-1) / 255, 1)[1:4, 13:16]  # 2x2 pixels are one of the grid
    for side in ("heads", "kernel"):
        terms = page.all(f"#sum-of-{side} span")
        read, values = np.array([term.text.split("\u2009×\u2009") for term in terms], float).T
        np.testing.assert_allclose(read, x.ravel(), atol=0.006)
        np.testing.assert_array_equal(values, range(1, 10))
        assert float(page.find(f"#total-of-{side}").text) == pytest.approx(x.ravel() @ values, abs=1e-4)
    colours = [
        [page.run("getComputedStyle(arguments[0]).backgroundColor", element) for element in page.all(selector)]
        for selector in ("#sum-of-heads span", "#sum-of-kernel span", "#entries input")
    ]
    assert colours[0] == colours[1] == colours[2]
    assert len(set(colours[0])) == 9


def test_the_theorem_is_that_of_the_package(open_page, images):
    """Nine heads of one sharpness are `conv_to_attention`'s, to 1e-7, and the convolution itself in the limit."""
    page = open_page("#picture=5")
    x = images[5].astype(np.float64).mean(axis=-1) / 255
    kernel = np.random.default_rng(0).normal(size=9)
    for sharpness in (-2, 1, 5):
        with jax.enable_x64(True):
            layer = conv_to_attention(kernel.reshape(3, 3, 1, 1), sharpness=2.0**sharpness)
            exact = conv_to_attention(kernel.reshape(3, 3, 1, 1))
            attention, convolution = (np.ravel(net(jnp.asarray(x)[None, ..., None])) for net in (layer, exact))
        page.run(f"setTheorem({{ kernel: {kernel.tolist()}, snap: 1, sharpness: {sharpness}, pixel: [3, 4] }})")
        found = page.run("theoremOf(brightness(), theorem)")
        np.testing.assert_allclose(found["attention"], attention, atol=1e-7)
        np.testing.assert_allclose(found["convolution"], convolution, atol=1e-7)
    assert float(page.find("#theorem-error").text.replace("\N{MINUS SIGN}", "-")) < 1e-6
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("#sum tr")]
    at = 3 * 2 * GRID[1] + 4
    assert [row[-1] for row in rows] == [f"= {attention[at]:.4f}", f"= {convolution[at]:.4f}"]
    for row in rows:
        assert sum(float(a) * float(b) for a, b in (cell.split(" × ") for cell in row[:-1])) == pytest.approx(
            convolution[at], abs=0.05
        )
    page.run("setTheorem({ kernel: GIVEN_KERNELS.edge, snap: 0, sharpness: -2 })")
    assert float(page.find("#theorem-error").text) > 0.1
    page.find("#run").click()
    page.run("void (theorem.snap = 0.9, theorem.sharpness = 4.5)")
    page.wait(lambda: page.run("theorem.sharpness") == 5)
    assert float(page.find("#theorem-error").text.replace("\N{MINUS SIGN}", "-")) < 1e-6


def test_few_heads_are_those_of_the_package(open_page, images):
    """One head or two for every filter of the panel, as `heads_needed` says; their sum is the convolution."""
    page = open_page("#picture=5")
    x = images[5].astype(np.float64).mean(axis=-1) / 255
    filters = page.run("FILTERS") | {"mine": np.random.default_rng(0).normal(size=25).tolist()}
    for name, entries in filters.items():
        size = math.isqrt(len(entries))
        kernel = np.reshape(entries, (size, size, 1, 1)).astype(np.float64)
        page.run(f"void setFew({{ filter: {list(entries)} }})")
        needed = heads_needed(kernel).enough
        assert len(page.all("#few-patterns canvas")) == needed, name
        assert page.find("#few-count").text.startswith({1: "One head is", 2: "Two heads are"}[needed])
        heads = page.run("headsOfFilter(few.filter)")
        np.testing.assert_allclose(sum(h["value"] * np.array(h["pattern"]) for h in heads), entries, atol=1e-12)
        np.testing.assert_allclose([sum(h["pattern"]) for h in heads], 1)
        with jax.enable_x64(True):
            expected = reference.evaluate(conv_to_attention(kernel, heads="fewest"), x[None, ..., None])
        found = page.run("[...patternMeans(brightness(), data.size, few.filter)]")
        np.testing.assert_allclose(found, np.ravel(expected), atol=1e-9)
        assert float(page.find("#few-error").text.replace("\N{MINUS SIGN}", "-")) < 1e-6
    random = np.random.default_rng(1)
    for rank in range(1, 10):
        kernel = random.normal(size=(9, rank)) @ random.normal(size=(rank, 9))
        page.run(f"void setFew({{ different: {rank} }})")
        needed = heads_needed(kernel.reshape(3, 3, 3, 3))
        assert rank <= needed.least <= needed.enough <= min(rank + 1, 9)
        said = f"at least {rank} heads, and {rank + 1} are" if rank < 9 else "nine heads"
        assert said in page.find("#few-rank").text


def test_a_filter_is_drawn_by_pointer_and_by_keys(open_page):
    page = open_page("#picture=5")
    page.find("#few-empty-3").click()
    assert page.find("#few-count").text == "Draw a filter."
    canvas = page.find("#few-canvas")
    drag = ActionChains(page.driver, duration=0).move_to_element(canvas).click_and_hold()
    drag.move_by_offset(int(canvas.rect["width"] / 3), 0).release().move_by_offset(0, -20).perform()
    assert page.run("few.filter") == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert page.find("#few-count").text.startswith("One head is")
    page.find('[name="brush"][value="-1"]').click()
    canvas.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_UP, " ", "+")
    assert page.run("few.filter") == [-0.75, 0, 0, 0, 1, 1, 0, 0, 0]
    assert page.find("#few-count").text.startswith("Two heads are")
    assert canvas.get_attribute("aria-label") == "Filter, row 1, column 1: -0.75"
