"""Pictures that a visitor brings to the page: files, classified as the command line classifies them."""

import pytest
from PIL import Image

from tests.page.browser import Page
from tests.page.conftest import GRID
from tests.page.test_network import random_run, written

pytestmark = pytest.mark.slow
SIZE = (GRID[0] * 2, GRID[1] * 2)


def test_the_first_picture_of_a_page_without_pictures_is_classified(quiet, tmp_path):
    page = Page(quiet, written(random_run(encoding="quadratic"), [], tmp_path / "page.html")).open()
    Image.new("RGB", SIZE[::-1], (200, 30, 30)).save(tmp_path / "mine.png")
    page.find("#file").send_keys(str(tmp_path / "mine.png"))
    page.wait(lambda: "predicted" in page.find("#caption").text)
