"""show: the page inside of a notebook."""

import html
import re

from attn_cnn_jax.page.inline import show
from attn_cnn_jax.runs.load import load_run


def test_show_is_the_page_in_a_frame(quadratic_run, data_dir):
    shown = show(load_run(quadratic_run), images=3, data_dir=str(data_dir), height=500)
    frame = shown._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"]*" title="[^"]*" style="[^"]*height: 500px[^"]*"></iframe>', frame)
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])
    assert page == shown.html
    assert page.count('"source":"data:image/png') == 3
    assert len(repr(shown)) < 80
