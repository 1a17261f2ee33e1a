"""Pages in frames: two runs side by side, which share what is chosen, and keys inside of a frame."""

import numpy as np
import pytest

from attn_cnn_jax.page.pictures import Picture
from attn_cnn_jax.page.render import render_pair
from tests.page.browser import Keys, Page
from tests.page.test_network import probed, quadratic, random_run, written  # noqa: F401

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


def test_runs_of_other_grids_share_places(quiet, frames, tmp_path):
    """A pixel of the coarse grid is four of the fine one."""
    pages = []
    for downsample, names in ((2, "abc"), (1, "a")):
        run = random_run(encoding="quadratic", downsample=downsample)
        pictures = [Picture(np.zeros(run.config.model.image_shape, np.uint8), name) for name in names]
        pages.append(written(run, pictures, tmp_path / "page.html").read_text())
    left, right = frames(*pages)
    wait = Page(quiet, None).wait
    right("choose({ query: [7, 2] })")
    wait(lambda: left("viewer.view().query.join()") == "3,1")
    left("pointAt({ query: [4, 6] })")
    wait(lambda: right("viewer.view().query.join()") == "9,13")
    right("addOwn('mine', null, data.pictures[0].source)")
    left("choose({ picture: 1, query: [0, 0] })")  # that is another one there
    wait(lambda: right("viewer.view().query.join()") == "1,1")
    assert right("viewer.view().picture") == 0
    left("choose({ picture: 2 })")
    right("choose({ picture: 1, query: [0, 9] })")
    wait(lambda: left("viewer.view().query.join()") == "0,4")
    assert left("viewer.view().picture") == 2


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
