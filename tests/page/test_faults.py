"""What visitors ran into, one test each."""

import jax
import numpy as np
import pytest

from attn_cnn_jax.data.image_files import LabelledImage
from tests.page.browser import Page, emulated
from tests.page.conftest import dataset_of, random_run, written

pytestmark = pytest.mark.slow


def test_on_a_phone_nothing_is_small_or_slides_over_the_image(quiet, open_page):
    with emulated(quiet, 390):
        page = open_page("#head=1,2")
        for element in page.all("button, input, select, summary"):
            is_file = element.get_attribute("id") == "file"  # lies over its label
            box = (element.find_element("xpath", "..") if is_file else element).rect
            is_large = min(box["width"], box["height"]) >= 24
            assert is_large or not element.is_displayed(), element.get_attribute("outerHTML")
        page.run("void scrollTo(0, tiles[0][1].button.getBoundingClientRect().top + scrollY - 60)")
        left = page.run("picture.getBoundingClientRect().left")
        assert page.run(f"document.elementsFromPoint({left} + 40, 60)[0].id") == "picture"


def test_numbers_beyond_the_page_are_limited(open_page):
    values = "1e200", "-1e200", "1e-200"
    moves = [f"1.{n}:{value}:{value}:{value.lstrip('-')}" for n, value in enumerate(values, start=1)]
    page = open_page(f"#head=1,1&move={','.join(moves)}")
    assert len(page.view()["moved"]) == 3
    assert np.all(np.isfinite(page.logits()))
    for value in values:
        page.run("void $('centre-row').focus()")
        page.run(f"void ($('centre-row').value = '{value}', $('centre-row').dispatchEvent(new Event('input')))")
        page.ready()
        assert np.all(np.isfinite(page.logits())), value
        assert page.run("$('centre-row').valueAsNumber === view.moved['0,0'].centre[0]")  # shown is what is used
    entry = "$('entries').firstChild"
    page.run(f"void ({entry}.focus(), {entry}.value = '1e99', {entry}.dispatchEvent(new Event('input')))")
    assert page.run(f"[{entry}.valueAsNumber, theorem.kernel[0]]") == [100, 100]


def test_ten_of_many_classes_are_shown_and_long_names_stay_in_their_place(quiet, images, tmp_path):
    names = tuple(f"{'an extraordinarily long name of a class ' * 2}{n}" for n in range(13))
    run, path = random_run(encoding="quadratic", num_classes=13), tmp_path / "page.html"
    image = LabelledImage(images[0], "test", names[0])
    page = Page(quiet, written(run, path, [image], dataset_of(images[:1], [0], names))).open()
    edge = page.find("#more").rect
    for cell in page.all("#lens-rows td.text"):
        assert cell.rect["x"] + cell.rect["width"] <= edge["x"] + edge["width"] + 1
    assert names[0] not in page.run("figureSvg().replace(/.*Tiles/, '')")
    probabilities = jax.nn.softmax(np.array(page.logits()))
    bars = [row.text.split()[-2:] for row in page.all("#bars li")]
    assert len(bars) == len(page.all("#lens-rows tr:first-child td")) - 1 == 10
    assert {int(number) for number, _ in bars} == set(np.argsort(-probabilities)[:10].tolist())
    assert bars[0][1] in (f"{100 * probabilities[int(bars[0][0])]:.0f}%", "<1%")


@pytest.mark.parametrize("name", ["quadratic", "learned"])
def test_panels_stay_where_they_are_when_training_is_played(quiet, open_page, name):
    page = open_page(name=name)
    for width in (1280, 1000, 390):
        with emulated(quiet, width):
            tops = []
            for epoch in (2, 0):
                page.run(f"choose({{ epoch: {epoch} }})")
                page.shown()
                tops.append(page.run("$('more').getBoundingClientRect().top + scrollY"))
            assert tops[0] == tops[1], width


def test_forced_colours_keep_bars_and_cells(quiet, open_page):
    with emulated(quiet, forced_colors="active"):
        page = open_page()
        for selector in ("#bars .bar", "#lens td"):
            adjust = f"getComputedStyle(document.querySelector('{selector}')).forcedColorAdjust"
            assert page.run(adjust) == "none"
        for group in ("pictures", "tile-choice"):  # the chosen image and view
            outlines = f"Array.from($('{group}').children, (each) => getComputedStyle(each).outlineStyle)"
            found = page.run(outlines)
            assert found.count("solid") == 1 == found.index("none"), group


def test_slider_classes_and_switch_are_on_one_screen(quiet, open_page):
    """Of a laptop, 1366 x 768; and on a phone the accuracy is not cut."""
    with emulated(quiet, 1366, 768):
        page = open_page("#step=5")
        for name in ("layers", "bars", "head-off"):
            box = page.run(f"$('{name}').getBoundingClientRect()")
            assert 0 < box["top"] < box["bottom"] <= 768, name
        page.open("#step=3")
        page.wait(lambda: "border" in page.find("#accuracy").text)
        assert page.run("$('accuracy').scrollHeight <= $('accuracy').clientHeight")
        assert page.run("$('accuracy').scrollWidth <= $('accuracy').clientWidth")
    with emulated(quiet, 390):
        page = open_page("#step=3")
        page.wait(lambda: "border" in page.find("#accuracy").text)
        assert page.run("$('accuracy').scrollWidth <= $('accuracy').clientWidth")
        assert page.run("document.documentElement.scrollWidth") <= 390


def test_back_goes_to_the_step_before(quiet, open_page):
    page = open_page()
    address = "location.hash"
    for step in (2, 3):
        page.all("#steps button")[step - 1].click()
        page.wait(lambda step=step: f"step={step}" in page.run(address))
    page.run("void choose({ query: [1, 1] })")  # no address of its own
    page.wait(lambda: "query=1,1" in page.run(address))
    for step in (1, 0):
        quiet.back()
        page.wait(lambda step=step: page.view()["step"] == step)
    assert page.driver.current_url.startswith("file:")


def test_only_scripts_of_the_page_may_run(quiet, open_page):
    page = open_page()
    policy = page.run("document.querySelector('meta[http-equiv]').content")
    assert "unsafe" not in policy
    for part in ("base-uri 'none'", "form-action 'none'", "script-src 'sha256-"):
        assert part in policy
    script = "Object.assign(document.createElement('script'), { textContent: 'window.ran = 1' })"
    page.run(f"void document.body.append({script})")
    assert page.run("window.ran") is None
    assert "violates" in quiet.get_log("browser")[0]["message"]
