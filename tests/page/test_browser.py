"""The page in a real browser: its numbers are the model's, its controls do what they say, it asks nobody."""

import numpy as np
import pytest

from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.page import build
from tests.page.browser import COLUMNS, ROWS, ActionChains, Keys, Page
from tests.page.conftest import HOSTILE, written

pytestmark = pytest.mark.slow


def test_scripts_in_any_order_are_the_page(quiet, quadratic, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "sorted", lambda paths: sorted(paths, reverse=True), raising=False)
    page = Page(quiet, written(quadratic, tmp_path / "page.html")).open()
    assert len(page.all(".head")) == 4


def test_pictures_terms_and_scores_are_chosen(open_page, runs, images):
    """What the network computes without a term is tested in test_forward."""
    page = open_page("#tiles=map", "learned_content")
    page.all("#pictures button")[1].click()
    page.ready()
    assert page.view()["picture"] == 1
    before, expected = runs["learned_content"].attention(images[:2])[1][:, 0, 2, 3]
    np.testing.assert_allclose(page.probabilities(1, 0), expected, atol=1e-4)
    assert np.abs(expected - before).max() > 1e-3
    assert HOSTILE in page.find("#caption").text  # names are text
    assert page.find("#title").text == page.driver.title == f"Heads of {HOSTILE}"
    assert page.run("document.querySelectorAll('img[src=x]').length") == 0
    page.find("#softmax").click()
    assert page.find("#heads-title").text == "Scores of all heads"
    scores = np.array(page.run("Array.from(scoresOf(0, 0))"))
    exponentials = np.exp(scores - scores.max())
    np.testing.assert_allclose(page.probabilities(0, 0).ravel(), exponentials / exponentials.sum(), atol=1e-12)
    page.find("#terms input[value=content]").click()
    assert page.view()["terms"] == ["position"]
    page.find("#terms input[value=position]").click()
    assert page.view()["terms"] == []
    assert np.ptp(page.run("Array.from(scoresOf(0, 0))")) == 0 < np.ptp(scores)


def test_pointing_previews_and_a_click_or_drag_keeps(open_page, quadratic):
    page = open_page("#tiles=map")
    before = page.drawn(0, 0)
    page.point(1, 5).perform()
    assert page.view()["query"] == [1, 5]
    np.testing.assert_allclose(page.probabilities(0, 1), quadratic.attention()[0][1][1, 5], atol=1e-4)
    assert np.any(page.drawn(0, 0) != before)
    title = ActionChains(page.driver, duration=0).move_to_element(page.find("#title"))
    title.click_and_hold().perform()
    assert page.view()["query"] == [2, 3]
    page.point(3, 1).perform()  # a drag that began elsewhere
    assert page.view()["query"] == [2, 3]
    page.point(3, 1).release().perform()
    assert page.run("view.query") == [2, 3]
    page.point(4, 0).click().perform()
    assert page.run("view.query") == [4, 0]
    page.point(3, 1, page.point(1, 5).click_and_hold()).perform()
    assert page.view()["query"] == [3, 1]
    page.point(3, 1).release().perform()
    assert page.run("view.query") == [3, 1]


def test_keys_move_the_query_and_choose_a_head(open_page):
    page = open_page("#query=0,5")
    page.keys(Keys.ARROW_DOWN)
    assert page.view()["query"] == [0, 5]  # nothing has the focus: the arrows scroll
    page.run("void $('picture').focus()")
    page.keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.view()["query"] == [1, 6]
    page.keys(Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_UP)
    assert page.view()["query"] == [0, 5]
    page.wait(lambda: "row 0, column 5" in page.find("#live").get_attribute("textContent"))
    page.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, shift=True)
    assert page.view()["head"] == [0, 2]
    page.keys(Keys.ARROW_DOWN, shift=True)
    assert page.view()["head"] == [1, 0]  # the second layer has one head
    assert page.run("document.activeElement.getAttribute('aria-label')") == "Layer 2, head 1"
    assert [tile.get_attribute("aria-pressed") for tile in page.all(".head")] == ["false"] * 3 + ["true"]
    page.keys(Keys.ESCAPE)
    assert page.view()["head"] is None


def test_where_a_head_looks_is_as_the_package_says(open_page, quadratic):
    page = open_page()
    ActionChains(page.driver, duration=0).move_to_element(page.all(".head")[1]).perform()
    assert page.find("#reading-title").text == "Layer 1, head 2"
    p, query = quadratic.attention()[0][1][2, 3], (2, 3)
    centre = moments.centre_of_mass(p) - query
    np.testing.assert_allclose(page.run("centreOfMass(probabilitiesOf(0, 1), [2, 3], grid)"), centre, atol=1e-5)
    assert page.run("entropyOf(probabilitiesOf(0, 1))") == pytest.approx(moments.entropy(p), abs=1e-5)
    row, column = quadratic.model.blocks[0].attention.position.centre[...][1]
    texts = f"Parameter {row:+.2f}, {column:+.2f}", f"Centre {centre[0]:+.2f}, {centre[1]:+.2f}"
    assert all(text in page.find("#statistics").text.replace("−", "-") for text in texts)


def test_the_address_restores_the_view(open_page):
    address = "#picture=1&query=4,1&head=2,2&terms=content&softmax=0"
    expected = {"picture": 1, "query": [4, 1], "head": [1, 1], "terms": ["content"], "softmax": False}
    page = open_page(address, "learned_content")
    assert expected.items() <= page.view().items()
    page.run("void $('picture').focus()")
    page.keys(Keys.ARROW_UP)
    moved = address.replace("4,1", "3,1")
    page.wait(lambda: page.driver.current_url.endswith(moved))
    page.run("void (location.hash = '#query=0,0')")  # as by the back button: what is not named is the default
    page.wait(lambda: page.view()["query"] == [0, 0])
    page.ready()
    assert page.view()["terms"] == ["position", "content"]
    assert page.view()["softmax"]
    for wrong in ("#query=9,9&head=7,1&picture=-1", "#query=1&terms=%3Cb%3E&epoch=x", "#&&=%"):
        view = page.run(f"viewFromHash('{wrong}')")
        assert (view["query"], view["head"], view["picture"]) == ([2, 3], None, 0), wrong


def test_training_is_played(open_page, quadratic):
    page = open_page("#epoch=2")
    assert page.find("#history").is_displayed()
    assert page.probabilities(0, 0).argmax() == np.ravel_multi_index((2, 5), (ROWS, COLUMNS))
    page.find("#epoch").send_keys(Keys.ARROW_LEFT)
    assert page.probabilities(0, 0).argmax() == np.ravel_multi_index((2, 4), (ROWS, COLUMNS))
    assert page.view()["query"] == [2, 3]  # the arrows belong to the slider here
    assert f">epoch {page.find('#epoch-text').text}</text>" in page.run("figureSvg()")
    page.find("#epoch").send_keys(Keys.END)
    np.testing.assert_allclose(page.probabilities(0, 0), quadratic.attention()[0][0][2, 3], atol=1e-4)
    # Seen in the page itself: a busy machine may not ask in time.
    page.run("(window.seen = [], setInterval(() => seen.push([play.textContent, view.epoch].join()), 10))")
    page.find("#play").click()
    assert "heads of layer 1 look from here" in page.find("#overlay-text").text
    page.wait(lambda: "Pause,1" in page.run("seen"))
    page.wait(lambda: page.find("#play").text == "Play")
    assert page.view()["epoch"] == 2  # the end
    assert page.run("centresOf(0).map((head) => head.centre)") == page.run("data.layers[0].position.centre")


def test_centres_of_attention_at_the_last_epoch(open_page):
    """Where no parameter is a centre, those that were recorded are shown."""
    page = open_page("#picture=0", "learned")
    assert page.run("centresOf(0).map((head) => head.centre.join())") == ["0,3", "0,3"]
    page.run("choose({ epoch: 0 })")
    assert "as Gaussians" in page.find("#history-note").text
    page.find("#play").click()
    page.wait(lambda: page.find("#play").text == "Play")
    assert len(page.run("centresOf(0)")) == 2
    assert "heads of layer 1 look from here" in page.find("#overlay-text").text


def test_scores_of_masked_keys_take_no_colours(open_page):
    """landmark masks keys four columns away, three of seven columns here; keys of the first row stand out."""
    page = open_page("#query=2,0&softmax=0&tiles=map", "landmark")
    drawn = page.drawn(0, 0)
    assert np.any(drawn[0, 0] != drawn[1, 0])
    np.testing.assert_array_equal(drawn[0, 5], drawn[1, 0])  # masked: as the lowest score
