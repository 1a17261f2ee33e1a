"""The page itself: the files of web/ and the collected data in one HTML file."""

import base64
import hashlib
import json
from pathlib import Path

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically

WEB = Path(__file__).parent / "web"
# In the order in which they stand in the page: each may use what those before it define.
SCRIPTS = (
    *("numbers.js", "maps.js", "convolution.js", "network.js", "worker.js"),  # the worker's
    *("drawing.js", "view.js", "compute.js", "changes.js", "panels.js", "overlays.js", "own.js", "play.js"),
    *("steps.js", "theorem.js", "figure.js", "address.js", "show.js", "page.js", "frame.js"),
)
# Only what this file holds: no script, style or address of anybody else.
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src {styles}; script-src {scripts}; worker-src blob:; "
    "base-uri 'none'; form-action 'none'"
)


def render(data: dict) -> str:
    """The HTML text of a page of `data`, what `build.page_data` returns."""
    read = lambda name: (WEB / name).read_text(encoding="utf-8")  # noqa: E731
    scripts, style = {name: f"\n{read(name)}" for name in SCRIPTS}, read("page.css")
    parts = {
        "POLICY": POLICY.format(styles=hash_of(style), scripts=" ".join(map(hash_of, scripts.values()))),
        "STYLE": style,
        "DATA": as_script_text(data),
        "SCRIPTS": "\n".join(f'<script id="{name}">{text}</script>' for name, text in scripts.items()),
    }
    # From the template on the left to the right, so that no part is searched for the next one's place.
    text, rest = "", read("page.html")
    for name, part in parts.items():
        before, rest = rest.split(f"<!-- {name} -->")
        text += before + part
    return text + rest


def hash_of(text: str) -> str:
    """As a content security policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_script_text(data: dict) -> str:
    """JSON that can stand in a <script> element: nothing in it ends the element or opens another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write(path: Path, text: str) -> None:
    """Writes the page, whole or not at all."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose --out=FILE") from error
