"""The page inside of a notebook."""

import html
from typing import NamedTuple

from attn_cnn_jax.page.build import build
from attn_cnn_jax.page.images import shown_images
from attn_cnn_jax.runs.run import Run

TITLE = "What the heads attend to"


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
