"""Builds the page of a run: what it knows, its images, the network and the files of web/ in one HTML file.

`show` puts it into a notebook.
"""

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.data.image_files import LabelledImage
from attn_cnn_jax.data.sets import Dataset
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import encoding_class
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.page import MOST_PARAMETERS
from attn_cnn_jax.page.images import data_uri, from_dataset, shown_images
from attn_cnn_jax.page.network import all_names, costliest_head, network_data, reason_not_to_compute
from attn_cnn_jax.page.scores import content_parameters, position_parameters, recorded_epochs
from attn_cnn_jax.runs.evaluate import probabilities
from attn_cnn_jax.runs.positions import rounded
from attn_cnn_jax.runs.run import Run

TITLE = "What the heads attend to"  # in a notebook
TEST_IMAGES = 100  # whose accuracy the page counts
MOST_HEADS = 1024

WEB = Path(__file__).parent / "web"
# Only what this file holds: no script, style or address of anybody else.
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src {}; script-src {} {}; worker-src blob:; "
    "base-uri 'none'; form-action 'none'"
)


@jax.transfer_guard("allow")  # whatever the caller or JAX_TRANSFER_GUARD forbids elsewhere
def build(
    run: Run,
    images: list[LabelledImage],
    dataset: Dataset | None,
    size: tuple[int, int],
    *,
    title: str,
    most_parameters: int = MOST_PARAMETERS,
) -> str:
    """Returns the HTML of a run's page, with images of a size (H, W) to choose from and a title, plain text.

    The data set names the classes, and has test images whose accuracy the page counts; None where it is not there. A
    network of more than `most_parameters` does not run. UserError if the run has nothing to show, or too much.
    """
    data = page_data(run, size, title=title)
    class_names = dataset.spec.class_names if dataset else run.class_names
    reason = reason_not_to_compute(run, tuple(data["grid"]), most_parameters)
    if reason and run.model.depends_on_content:
        raise UserError(f"this network's attention depends on the image, and the page cannot compute it: {reason}")
    data["pictures"] = [
        {"name": image.name, "label": image.label, "source": data_uri(image.pixels)} for image in images
    ]
    if reason is None:
        test = from_dataset(dataset, min(TEST_IMAGES, len(dataset.test.labels)), size) if dataset else []
        data["network"] = network_data(run, tuple(data["grid"]), class_names, test)
        data["network"]["costliest"] = costliest_head(run, test or images, class_names)
    elif images:
        for picture, told in zip(data["pictures"], predictions(run, images, class_names), strict=True):
            picture.update(told)
    return render(data)


def check(run: Run, size: tuple[int, int]) -> None:
    """UserError where a page would be of no use: no attention, or more of it than a browser can show."""
    model, blocks = run.config.model, run.attention_network().blocks
    if size[0] % model.downsample or size[1] % model.downsample:
        raise UserError(f"--size={size[0]}x{size[1]}: both sides must be multiples of {model.downsample}")
    if not all(np.all(np.isfinite(array)) for array in split(run.model)[1].values()):
        raise UserError(f"the parameters at step {run.step} are not finite numbers: choose an earlier --step")
    heads = sum(block.attention.num_heads for block in blocks)
    pixels = size[0] * size[1] // model.downsample**2
    for what, amount, most in (
        ("heads in all", heads, MOST_HEADS),
        ("pixels to attend to", pixels, 128 * 128),
        ("pixels on a side", max(size), 512 * model.downsample),  # scores of columns grow as their square
        ("heads times pixels", heads * pixels, 4_000_000),  # scores that are computed when the query moves
    ):
        if amount > most:
            raise UserError(f"{amount} {what}: a page shows at most {most}; choose a smaller --size")


def page_data(run: Run, size: tuple[int, int], *, title: str) -> dict[str, Any]:
    """All that does not depend on an image; arguments as in `build`.

    Returns:
      `title`, `facts` (what the heading says), `size` [H, W] and `grid` [rows, columns], `channels`, `terms` (names of
      score terms), `contentTerms` (those that depend on the image), `layers` (`heads`; `position`, see
      `scores.position_parameters`; `gate`, the weight of position attention of each head, or None where scores
      are added before one softmax), `epsilon` of layer norms, `epochs`, `network`, None (see network.py), and
      `pictures`, an empty list.
    """
    check(run, size)
    model, blocks = run.config.model, run.model.blocks
    grid: Grid = (size[0] // model.downsample, size[1] // model.downsample)
    layers = [
        {
            "heads": block.attention.num_heads,
            "position": position_parameters(block.attention.position, grid),
            "gate": None if block.attention.gate is None else jax.nn.sigmoid(block.attention.gate[...]),
        }
        for block in blocks
    ]
    readers = [content_parameters(encoding, grid) for encoding in blocks[0].attention.readers]
    content = [name for reader in readers if reader for name in reader["terms"]]
    position = layers[0]["position"]["term"] if layers[0]["position"] else None
    own = [] if position is None else [position]
    return {
        "title": title,
        "facts": {
            "dataset": run.config.dataset.name,
            "encoding": model.encoding + " + content" * model.content + " (gated)" * model.gate,
            "step": int(run.step),
        },
        "size": list(size),
        "grid": list(grid),
        "channels": model.image_shape[2],
        # As the paper writes them: an encoding with content terms of its own ends with position (eq. 8).
        "terms": own + content if encoding_class(model.encoding).accepts_content() else content + own,
        "contentTerms": content,
        "layers": in_json(layers),
        "epsilon": blocks[0].attention_norm.epsilon,
        "epochs": recorded_epochs(run.positions, run.step, [layer["heads"] for layer in layers], position),
        "network": None,
        "pictures": [],
    }


def predictions(run: Run, images: list[LabelledImage], class_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the network takes images for, where the page cannot say it; `class_names`: () where they are unknown."""
    # Logits, which images of another size have too: the page shows them at any.
    found = probabilities(run.logits(np.stack([image.pixels for image in images])))
    names = all_names(class_names, found.shape[1])
    return [{"prediction": names[row.argmax()], "confidence": round(float(row.max()), 4)} for row in found]


def in_json(tree: Any) -> Any:
    """A tree with its arrays as nested lists, of numbers with no more digits than float32 has."""
    return jax.tree.map(lambda x: rounded(x, digits=9) if isinstance(x, np.ndarray | jax.Array) else x, tree)


def render(data: dict) -> str:
    """The HTML text of a page of `data`, what `build.page_data` returns."""
    texts = {"STYLE": (WEB / "page.css").read_text("utf-8"), "WORKER": scripts(WEB / "worker"), "PAGE": scripts(WEB)}
    parts = {"POLICY": POLICY.format(*map(hash_of, texts.values())), **texts, "DATA": as_script_text(data)}
    return re.sub("<!-- ([A-Z]+) -->", lambda found: parts[found[1]], (WEB / "page.html").read_text("utf-8"))


def scripts(folder: Path) -> str:
    """All scripts of a folder as one. Their order is of no consequence: what runs at load uses its own file alone."""
    return "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.js")))


def hash_of(text: str) -> str:
    """As a content security policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_script_text(data: dict) -> str:
    """JSON that can stand in a <script> element: nothing in it ends the element or opens another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Inline(NamedTuple):
    """A page that notebooks show in a frame, without a file or a request; `height` is the frame's, in pixels."""

    html: str
    height: int

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="{TITLE}" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<page of a run, {len(self.html.encode()) / 1e6:.1f} MB>"


def show(run: Run, images: int = 8, data_dir: str | None = None, height: int = 800) -> Inline:
    """Returns the interactive page of a run's network, which a notebook shows in place.

    Args:
      run: as `load_run` returns it.
      images: number of test images to choose from.
      data_dir: folder of the data set, if not the one used in training. Without the data set there are no test
        images; a network whose attention depends on content needs some.
      height: of the frame, in pixels.

    Raises:
      UserError: if the network has no attention to show, or too much.
    """
    size = run.config.model.image_shape[0], run.config.model.image_shape[1]
    chosen, dataset, _ = shown_images(run, images, size, data_dir)
    return Inline(build(run, chosen, dataset, size, title=TITLE), height)
