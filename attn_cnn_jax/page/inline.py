"""The page inside of a notebook."""

import html
from typing import NamedTuple

from attn_cnn_jax.analysis.pictures import dataset_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.page.build import build
from attn_cnn_jax.page.pictures import from_dataset
from attn_cnn_jax.runs.run import Run


class Inline(NamedTuple):
    """A page that notebooks show in a frame.

    Attributes:
      html: the whole page.
      height: of the frame, in pixels.
    """

    html: str
    height: int

    def _repr_html_(self) -> str:
        """Returns the frame, with the page inside: no file, no request."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="{TITLE}" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<page of a run, {len(self.html.encode()) / 1e6:.1f} MB>"


TITLE = "What the heads attend to"


def inline(run: Run, images: int = 8, data_dir: str | None = None, height: int = 800) -> Inline:
    """Returns the page of a run for a notebook, see `Run.show`."""
    try:
        dataset = dataset_of(run.config, data_dir, download=False)
    except UserError:
        if run.model.depends_on_content:
            raise
        dataset = None
    size = tuple(run.config.model.image_shape[:2])
    pictures = from_dataset(dataset, images, size) if dataset else []
    return Inline(build(run, pictures, dataset, size, title=TITLE).html, height)
