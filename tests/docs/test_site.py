"""The documentation site: its search, its entries, and links from source listings."""

import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from tests.page.conftest import chromium  # noqa: F401, a fixture

DOCS = Path(__file__).parents[2] / "docs"
SEARCHES = {
    "resume": "first_run",
    "checkpoint": "first_run",
    "train on my own images": "own_images",
    "attention maps of my ViT": "your_network",
    "out of memory": "troubleshooting",
}
FIRST = """\
const done = arguments[0];
const first = () => {
  const link = document.querySelector("#search-results ul.search li a");
  if (link) done(link.getAttribute("href")); else setTimeout(first, 50);
};
first();
"""


@pytest.mark.slow
def test_searches_find_their_page_first(chromium, tmp_path):  # noqa: F811
    """With the site's scores, over all guides; the reference and the notebooks take too long to build here."""
    application = pytest.importorskip("sphinx.application", reason="sphinx is not installed")
    source = tmp_path / "docs"
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("_build", "notebooks", "api*", "*.gif", "*.png"))
    options = {
        "extensions": ["myst_nb"],
        "html_search_scorer": str(DOCS / "_static/scorer.js"),
        "myst_enable_extensions": ["colon_fence", "dollarmath"],
    }
    app = application.Sphinx(
        source, None, tmp_path / "site", tmp_path / "trees", "html", options, status=None, warning=None
    )
    app.build()
    for text, page in SEARCHES.items():
        chromium.get(f"file://{tmp_path}/site/search.html?q={quote(text)}")
        found = chromium.execute_async_script(FIRST)
        assert found.partition("?")[0].partition("#")[0] == f"{page}.html", text


def test_entries_are_few_and_hold_every_page():
    """At most 18 beside one another; every page is one of them or below one."""
    entries = {}
    for page in DOCS.glob("*.md"):
        trees = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL)
        lines = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
        entries[page.stem] = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    assert len(entries["index"]) <= 18
    listed = sorted(entry for below in entries.values() for entry in below)
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    notebooks = {f"notebooks/{path.stem}" for path in (DOCS.parent / "notebooks").glob("*.ipynb")}
    assert listed == sorted(pages | notebooks)


def test_source_listings_link_to_names_as_they_are_documented(monkeypatch):
    pytest.importorskip("docutils", reason="sphinx is not installed")
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    monkeypatch.syspath_prepend(DOCS)
    conf = runpy.run_path(str(DOCS / "conf.py"))
    names = {"pack.inspect", "pack.report.Report", "pack.report.Report.rows"}
    names = {name.replace("pack", "attn_cnn_jax") for name in names}
    app = SimpleNamespace(env=SimpleNamespace(get_domain=lambda name: SimpleNamespace(objects=names)))
    links = ['"a.html#attn_cnn_jax.inspect"', '"a.html#attn_cnn_jax.Report"', '"a.html#attn_cnn_jax.Report.rows"']
    context = {"body": " ".join(links)}
    conf["repair_backlinks"](app, "_modules/attn_cnn_jax/report", None, context, None)
    assert set(re.findall(r'#([^"]+)"', context["body"])) == names
