"""The page itself: the files of web/ and the collected data in one HTML file."""

import base64
import hashlib
import json
from pathlib import Path

WEB = Path(__file__).parent / "web"
# In the order in which they stand in the page: each may use what those before it define.
OF_WORKER = ("numbers.js", "maps.js", "convolution.js", "network.js", "learning.js", "worker.js")
OF_PAGE = (
    *("drawing.js", "view.js", "compute.js", "changes.js", "panels.js", "own.js", "strokes.js", "open.js", "play.js"),
    *("steps.js", "theorem.js", "student.js", "figure.js", "address.js", "show.js", "page.js"),
)
# Only what this file holds: no script, style or address of anybody else.
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src {}; script-src {} {}; worker-src blob:; "
    "base-uri 'none'; form-action 'none'"
)


def render(data: dict) -> str:
    """The HTML text of a page of `data`, what `build.page_data` returns."""
    files = {"STYLE": ["page.css"], "WORKER": OF_WORKER, "PAGE": OF_PAGE}
    texts = {part: "".join((WEB / name).read_text("utf-8") for name in names) for part, names in files.items()}
    parts = {"POLICY": POLICY.format(*map(hash_of, texts.values())), **texts, "DATA": as_script_text(data)}
    # From the template on the left to the right, so that no part is searched for the next one's place.
    text, rest = "", (WEB / "page.html").read_text("utf-8")
    for name in ("POLICY", "STYLE", "DATA", "WORKER", "PAGE"):
        before, rest = rest.split(f"<!-- {name} -->")
        text += before + parts[name]
    return text + rest


def hash_of(text: str) -> str:
    """As a content security policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_script_text(data: dict) -> str:
    """JSON that can stand in a <script> element: nothing in it ends the element or opens another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
