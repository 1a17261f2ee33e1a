"""The page in a real browser: its numbers are the model's, its controls do what they say, it asks nobody."""

import numpy as np
import pytest

from tests.page.browser import COLUMNS, ROWS, ActionChains, Keys

pytestmark = pytest.mark.slow


def test_pictures_terms_and_scores_are_chosen(page, attention):
    """What the network computes without a term is tested in test_forward."""
    opened = page("learned_content", "#tiles=map")
    opened.all("#pictures button")[1].click()
    opened.ready()
    assert opened.view()["picture"] == 1
    expected = attention("learned_content", picture=1)[1][0][2, 3]
    np.testing.assert_allclose(opened.probabilities(1, 0), expected, atol=1e-4)
    assert np.abs(expected - attention("learned_content")[1][0][2, 3]).max() > 1e-3
    opened.find("#softmax").click()
    assert opened.find("#heads-title").text == "Scores of all heads"
    scores = np.array(opened.run("Array.from(scoresOf(0, 0))"))
    exponentials = np.exp(scores - scores.max())
    np.testing.assert_allclose(opened.probabilities(0, 0).ravel(), exponentials / exponentials.sum(), atol=1e-12)
    opened.find("#terms input[value=content]").click()
    assert opened.view()["terms"] == ["position"]
    opened.find("#terms input[value=position]").click()
    assert opened.view()["terms"] == []
    assert np.ptp(opened.run("Array.from(scoresOf(0, 0))")) == 0 < np.ptp(scores)


def test_pointing_previews_and_a_click_or_drag_keeps(page, attention):
    opened = page("quadratic", "#tiles=map")
    before = opened.drawn(0, 0)
    opened.point(1, 5).perform()
    assert opened.view()["query"] == [1, 5]
    np.testing.assert_allclose(opened.probabilities(0, 1), attention("quadratic")[0][1][1, 5], atol=1e-4)
    assert np.any(opened.drawn(0, 0) != before)
    title = ActionChains(opened.driver, duration=0).move_to_element(opened.find("#title"))
    title.click_and_hold().perform()
    assert opened.view()["query"] == [2, 3]
    opened.point(3, 1).perform()  # a drag that began elsewhere
    assert opened.view()["query"] == [2, 3]
    opened.point(3, 1).release().perform()
    assert opened.run("view.query") == [2, 3]
    opened.point(4, 0).click().perform()
    assert opened.run("view.query") == [4, 0]
    opened.point(3, 1, opened.point(1, 5).click_and_hold()).perform()
    assert opened.view()["query"] == [3, 1]
    opened.point(3, 1).release().perform()
    assert opened.run("view.query") == [3, 1]


def test_keys_move_the_query_and_choose_a_head(page):
    opened = page("quadratic", "#query=0,5")
    opened.keys(Keys.ARROW_DOWN)
    assert opened.view()["query"] == [0, 5]  # nothing has the focus: the arrows scroll
    opened.run("void $('picture').focus()")
    opened.keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert opened.view()["query"] == [1, 6]
    opened.keys(Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_UP)
    assert opened.view()["query"] == [0, 5]
    opened.wait(lambda: "row 0, column 5" in opened.find("#live").get_attribute("textContent"))
    opened.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, shift=True)
    assert opened.view()["head"] == [0, 2]
    opened.keys(Keys.ARROW_DOWN, shift=True)
    assert opened.view()["head"] == [1, 0]  # the second layer has one head
    assert opened.run("document.activeElement.getAttribute('aria-label')") == "Layer 2, head 1"
    assert [tile.get_attribute("aria-pressed") for tile in opened.all(".head")] == ["false"] * 3 + ["true"]
    opened.keys(Keys.ESCAPE)
    assert opened.view()["head"] is None


def test_a_wrong_address_does_no_harm(page):
    for hash_ in ("#query=9,9&head=7,1&picture=-1", "#query=1&terms=%3Cb%3E&epoch=x", "#&&=%"):
        view = page("quadratic", hash_).view()
        assert (view["query"], view["head"], view["picture"]) == ([2, 3], None, 0), hash_


def test_statistics_on_hover(page, attention):
    opened = page("quadratic")
    tile = opened.all(".head")[1]
    ActionChains(opened.driver, duration=0).move_to_element(tile).perform()
    assert opened.find("#reading-title").text == "Layer 1, head 2"
    p = attention("quadratic")[0][1][2, 3].astype(float)
    rows, columns = np.mgrid[:ROWS, :COLUMNS]
    shift = np.stack([rows - 2, columns - 3])
    centre = (p * shift).sum(axis=(1, 2))
    covariance = np.einsum("kl,akl,bkl->ab", p, shift - centre[:, None, None], shift - centre[:, None, None])
    here = opened.run("queryStatistics(0, 1)")
    np.testing.assert_allclose([here["row"], here["column"]], centre, atol=1e-5)
    np.testing.assert_allclose(
        [[here["rowRow"], here["rowColumn"]], [here["rowColumn"], here["columnColumn"]]], covariance, atol=1e-5
    )
    np.testing.assert_allclose(here["entropy"], -(p * np.log(np.maximum(p, 1e-30))).sum(), atol=1e-5)
    np.testing.assert_allclose(here["distance"], (p * np.hypot(*shift)).sum(), atol=1e-5)
    shown = opened.find("#statistics").text.replace("−", "-")
    assert f"{centre[0]:+.2f}, {centre[1]:+.2f}" in shown
    assert f"{here['entropy']:.2f}" in shown
    row, column = opened.run("data.layers[0].position.centre[1]")
    assert f"Parameter {row:+.2f}, {column:+.2f}" in shown


def test_the_address_restores_the_view(page):
    address = "#picture=1&query=4,1&head=2,2&terms=content&softmax=0&scale=common"
    expected = {"picture": 1, "query": [4, 1], "head": [1, 1], "terms": ["content"], "softmax": False, "common": True}
    opened = page("learned_content", address)
    assert expected.items() <= opened.view().items()
    opened.run("void $('picture').focus()")
    opened.keys(Keys.ARROW_UP)
    moved = address.replace("4,1", "3,1")
    opened.wait(lambda: opened.driver.current_url.endswith(moved))
    opened.run("void (location.hash = '#query=0,0')")  # as by the back button: what is not named is the default
    opened.wait(lambda: opened.view()["query"] == [0, 0])
    opened.ready()
    assert opened.view()["terms"] == ["position", "content"]
    assert opened.view()["softmax"]


def test_epochs(page, attention):
    opened = page("quadratic", "#epoch=2")
    assert opened.find("#history").is_displayed()
    assert opened.probabilities(0, 0).argmax() == np.ravel_multi_index((2, 5), (ROWS, COLUMNS))
    opened.find("#epoch").send_keys(Keys.ARROW_LEFT)
    assert opened.probabilities(0, 0).argmax() == np.ravel_multi_index((2, 4), (ROWS, COLUMNS))
    assert opened.view()["query"] == [2, 3]  # the arrows belong to the slider here
    assert f">epoch {opened.find('#epoch-text').text}</text>" in opened.run("figureSvg()")
    opened.find("#epoch").send_keys(Keys.END)
    np.testing.assert_allclose(opened.probabilities(0, 0), attention("quadratic")[0][0][2, 3], atol=1e-4)


def test_the_course_of_training_plays(page):
    opened = page("quadratic")
    # Seen in the page itself: a busy machine may not ask in time.
    opened.run("(window.seen = [], setInterval(() => seen.push([play.textContent, view.epoch].join()), 10))")
    opened.find("#play").click()
    assert "heads of layer 1 look from here" in opened.find("#overlay-text").text
    opened.wait(lambda: "Pause,1" in opened.run("seen"))
    opened.wait(lambda: opened.find("#play").text == "Play")
    assert opened.view()["epoch"] == 2  # the end
    assert opened.run("centresOf(0).map((head) => head.centre.join())") == [
        ",".join(f"{n}" for n in centre) for centre in opened.run("data.layers[0].position.centre")
    ]


def test_centres_of_attention_at_the_last_epoch(page):
    """Where no parameter is a centre, those that were recorded are shown."""
    opened = page("learned", "#picture=0")
    assert opened.run("centresOf(0).map((head) => head.centre.join())") == ["0,3", "0,3"]
    opened.run("choose({ epoch: 0 })")
    assert "as Gaussians" in opened.find("#history-note").text
    opened.find("#play").click()
    opened.wait(lambda: opened.find("#play").text == "Play")
    assert len(opened.run("centresOf(0)")) == 2
    assert "heads of layer 1 look from here" in opened.find("#overlay-text").text


def test_scores_of_masked_keys_take_no_colours(page):
    """landmark masks keys four columns away, three of seven columns here; keys of the first row stand out."""
    opened = page("landmark", "#query=2,0&softmax=0&tiles=map")
    drawn = opened.drawn(0, 0)
    assert np.any(drawn[0, 0] != drawn[1, 0])
    np.testing.assert_array_equal(drawn[0, 5], drawn[1, 0])  # masked: as the lowest score
    masked = "Float64Array.from({ length: 35 }, (_, n) => (n < 9 ? -1e30 : 2))"
    assert opened.run(f"rangeOf({masked})") == [2, 2]
    assert opened.run(f"[...{masked}.map((score) => level(score, [2, 2]))]") == [0] * 9 + [255] * 26
    assert opened.run("rangeOf(new Float64Array(35).fill(-1e30))") == [0, 0]


def test_names_are_shown_as_text(page, pages):
    data, _ = pages["quadratic"]
    opened = page("quadratic", "#picture=1")
    name = data["pictures"][1]["name"]
    assert "<script>" in name
    assert name in opened.find("#caption").text
    assert opened.find("#title").text == data["title"] == opened.driver.title
    assert opened.run("document.querySelectorAll('img[src=x]').length") == 0
