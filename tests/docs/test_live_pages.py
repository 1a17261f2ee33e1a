"""The interactive pages of the site's front page: small, from shipped weights, without a data set to download."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 2_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Texts of the pages by file name."""
    spec = importlib.util.spec_from_file_location("live_pages", DOCS / "live_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {path.name: path.read_text() for path in module.write_pages(tmp_path_factory.mktemp("site"))}


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_they_are_those_of_the_front_page_and_small(pages):
    assert set(pages) == set(re.findall(r'(?:src|href)="(\w+\.html)(?:\?figure)?"', (DOCS / "index.md").read_text()))
    for name, page in pages.items():
        assert len(page.encode()) <= MOST_BYTES, name
        assert data_of(page)["network"] is not None


def test_the_network_for_cifar10_recognises_the_drawings(pages):
    for picture in data_of(pages["cifar10.html"])["pictures"]:
        assert picture["name"] == f"{picture['prediction']}.png"
