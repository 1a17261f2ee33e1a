"""What visitors ran into, one test each."""

import numpy as np
import pytest

from attn_cnn_jax.page.images import LabelledImage
from tests.page.browser import Page, emulated
from tests.page.conftest import random_run, written
from tests.page.test_own import SIZE, open_to_draw

pytestmark = pytest.mark.slow


def test_on_a_phone_nothing_is_small_or_slides_over_the_image(quiet, probe):
    with emulated(quiet, 390):
        page = probe("#head=1,2")
        for element in page.all("button, input, select, summary"):
            is_file = element.get_attribute("id") == "file"  # lies over its label
            box = (element.find_element("xpath", "..") if is_file else element).rect
            is_large = min(box["width"], box["height"]) >= 24
            assert is_large or not element.is_displayed(), element.get_attribute("outerHTML")
        page.run("void scrollTo(0, tiles[0][1].button.getBoundingClientRect().top + scrollY - 60)")
        left = page.run("picture.getBoundingClientRect().left")
        assert page.run(f"document.elementsFromPoint({left} + 40, 60)[0].id") == "picture"


def test_an_empty_canvas_says_nothing_and_a_link_restores_a_drawing(quiet, tmp_path):
    page, _, _ = open_to_draw(quiet, tmp_path)
    page.ready()
    assert page.find("#caption").text == "your drawing"
    assert {output.text for output in page.all("#bars output")} == {"–"}
    page.drag((0, 0), (2, 4))
    assert "predicted" in page.find("#caption").text
    page.run("writeAddress()")
    logits, address = page.logits(), page.run("location.hash")
    assert page.open(address).view()["picture"] == 1
    np.testing.assert_array_equal(page.logits(), logits)
    assert page.open("#drawing=AAAA").view()["picture"] == 0  # of another size


def test_numbers_beyond_the_page_are_limited(probe):
    for value in ("1e200", "-1e200", "1e-200"):
        page = probe(f"#head=1,1&move=1.1:{value}:{value}:{value.lstrip('-')}")
        assert np.all(np.isfinite(page.logits()))
        page.run(f"void ($('centre-row').value = '{value}', $('centre-row').dispatchEvent(new Event('input')))")
        page.ready()
        assert np.all(np.isfinite(page.logits())), value


def test_long_class_names_stay_in_their_place(quiet, tmp_path):
    names = tuple(f"{'an extraordinarily long name of a class ' * 2}{n}" for n in range(10))
    image = LabelledImage(np.zeros((*SIZE, 3), np.uint8), "test", names[0])
    page = Page(quiet, written(random_run(encoding="quadratic"), [image], tmp_path / "page.html", names)).open()
    edge = page.find("#more").rect
    for cell in page.all("#lens-rows td.text"):
        assert cell.rect["x"] + cell.rect["width"] <= edge["x"] + edge["width"] + 1
    assert names[0] not in page.run("figureSvg().replace(/.*Tiles/, '')")


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_panels_stay_where_they_are_when_training_is_played(quiet, page, width):
    with emulated(quiet, width):
        for name in ("quadratic", "learned"):
            opened = page(name)
            top = "$('more').getBoundingClientRect().top + scrollY"
            before = opened.run(top)
            opened.run("choose({ epoch: 0 })")
            opened.shown()
            assert opened.run(top) == before, name


def test_forced_colours_keep_bars_and_cells(quiet, probe):
    with emulated(quiet, forced_colors="active"):
        page = probe()
        for selector in ("#bars .bar", "#lens td"):
            adjust = f"getComputedStyle(document.querySelector('{selector}')).forcedColorAdjust"
            assert page.run(adjust) == "none"


def test_only_scripts_of_the_page_may_run(quiet, probe):
    page = probe()
    policy = page.run("document.querySelector('meta[http-equiv]').content")
    assert "unsafe" not in policy
    for part in ("base-uri 'none'", "form-action 'none'", "script-src 'sha256-"):
        assert part in policy
    script = "Object.assign(document.createElement('script'), { textContent: 'window.ran = 1' })"
    page.run(f"void document.body.append({script})")
    assert page.run("window.ran") is None
    assert "violates" in quiet.get_log("browser")[0]["message"]
