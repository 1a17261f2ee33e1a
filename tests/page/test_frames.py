"""Pages in frames: two runs side by side, which share what is chosen, and keys inside of a frame."""

import pytest

from attn_cnn_jax.page.render import render_pair
from tests.page.browser import Keys, Page
from tests.page.test_network import probed, quadratic  # noqa: F401

pytestmark = pytest.mark.slow
IS_READY = "typeof viewer === 'object' && classified !== null"


@pytest.fixture
def frames(quiet, tmp_path):
    """`frames(left, right)` opens two pages, given as HTML, side by side: functions that run a script in each."""

    def opened(*pages):
        (tmp_path / "pair.html").write_text(render_pair(pages))
        quiet.get(f"file://{tmp_path / 'pair.html'}")
        scripts = [lambda script, number=number: inside(number, script) for number in range(2)]
        for script in scripts:
            shown(lambda script=script: script(IS_READY))
        return scripts

    def inside(number, script):
        quiet.switch_to.default_content()
        quiet.switch_to.frame(number)
        return quiet.execute_script(f"return {script}")

    shown = Page(quiet, tmp_path / "pair.html").wait
    yield opened
    quiet.switch_to.default_content()


def test_two_runs_share_query_and_picture(quiet, frames, probed):  # noqa: F811
    left, right = frames(*[probed[0].read_text()] * 2)
    wait = Page(quiet, None).wait
    left("choose({ query: [4, 1], picture: 3, head: [0, 1] })")
    wait(lambda: right("viewer.view().query.join()") == "4,1")
    view = right("viewer.view()")
    assert (view["picture"], view["head"]) == (3, None)
    right("pointAt({ query: [0, 0] })")
    wait(lambda: left("viewer.view().query.join()") == "0,0")


SKIP = "(document.querySelector('.skip').focus(), document.activeElement.className)"
FOCUSED = "document.activeElement.getAttribute('aria-label')"


def test_skipping_to_the_heads_keeps_the_view(quiet, probed):  # noqa: F811
    page = Page(quiet, probed[0]).open("#picture=2&query=4,1&head=2,3&softmax=0")
    before = page.view()
    assert page.run(SKIP) == "skip"
    page.keys(Keys.ENTER)
    page.wait(lambda: page.run(FOCUSED) == "Layer 2, head 3")
    page.shown()
    assert page.view() == before


def test_skipping_to_the_heads_in_a_frame(quiet, frames, probed):  # noqa: F811
    left, _ = frames(*[probed[0].read_text()] * 2)
    left("choose({ query: [4, 1], head: [1, 2] })")
    assert left(SKIP) == "skip"
    page = Page(quiet, None)
    page.keys(Keys.ENTER)
    page.wait(lambda: left(FOCUSED) == "Layer 2, head 3")
    assert left("viewer.view().query") == [4, 1]
