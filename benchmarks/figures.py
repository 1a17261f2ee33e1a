"""Figures of the documentation, as PNG files with a palette of few colours."""

import tempfile
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from attn_cnn_jax.analysis.figures import style

COLOURS = 128  # of a palette: a third of the bytes, and no difference to the eye


def put_figure(figure: Figure, target: Path) -> None:
    """Draws a figure."""
    with tempfile.TemporaryDirectory() as folder:
        (drawn, _) = style.save(figure, Path(folder), target.stem)
        put_picture(drawn, target)


def put_picture(drawn: Path, target: Path) -> None:
    """Copies a picture that is drawn."""
    Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(target)
