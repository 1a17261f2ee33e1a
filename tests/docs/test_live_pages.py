"""The interactive pages of the site's front page: small, from shipped weights, without a data set to download."""

import importlib
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 2_000_000


@pytest.mark.slow
def test_they_are_those_of_the_front_page_and_small_and_recognise_the_drawings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    pages = {path.name: path.read_text() for path in importlib.import_module("live_pages").write_pages(tmp_path)}
    assert set(pages) == set(re.findall(r'(?:src|href)="(\w+\.html)(?:\?figure)?"', (DOCS / "index.md").read_text()))
    data = r'<script type="application/json" id="data">(.*?)</script>'
    found = {name: json.loads(re.search(data, page, re.DOTALL)[1]) for name, page in pages.items()}
    for name, page in pages.items():
        assert len(page.encode()) <= MOST_BYTES, name
        assert found[name]["network"] is not None
    for picture in found["cifar10.html"]["pictures"]:
        assert picture["name"] == f"{picture['prediction']}.png"
