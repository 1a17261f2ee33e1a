"""How every figure looks, and how it is written: colours of heads, sizes, PNG, SVG and GIF files.

Figures are `matplotlib.figure.Figure` objects without pyplot, so that nothing is drawn into a program's own.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import replacing
from attn_cnn_jax.output import printable

COLUMN = 3.4  # inches: one of two columns of a paper
PAGE = 5.5  # inches: its whole width
DPI = 200

# Paul Tol's "muted" scheme: nine colours that readers with any colour vision tell apart.
COLOURS = ("#332288", "#CC6677", "#117733", "#DDAA33", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499")
FLAT = 1e-6  # relative differences of attention below this are rounding
QUERY = "#000000"
# Attention from none to most, in figures, notebooks and the page (`RAMPS.light` in page/web/drawing.js): light to dark,
# so that brightness alone tells the order.
RAMP = ((240, 242, 246), (251, 208, 140), (236, 118, 88), (150, 40, 110), (38, 12, 66))
ATTENTION = LinearSegmentedColormap.from_list("attention", np.array(RAMP) / 255)

RC = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 7),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 6),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.5),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2),
    "axes.titlepad": 3,
    "text.parse_math": False,  # a run's name may hold any character
    "svg.hashsalt": "attn_cnn_jax",  # the same run, the same file
    "svg.fonttype": "none",  # text stays text
}


class Look(NamedTuple):
    """Colour, line and mark of a head, the same in every figure: nine colours, then the same nine dashed and square."""

    colour: str
    line: str
    marker: str


def look(head: int) -> Look:
    """Returns how head `head` (from 0) is drawn."""
    turn = head // len(COLOURS)
    return Look(COLOURS[head % len(COLOURS)], ("-", "--", ":", "-.")[turn % 4], ("o", "s", "D", "^")[turn % 4])


def layer_colours(num_layers: int) -> np.ndarray:
    """Returns a colour per layer, the first dark, the last light."""
    return matplotlib.colormaps["viridis"](np.linspace(0, 0.9, num_layers))


def numbers(heads: list[int], of: int) -> str:
    """Returns heads as a title names them, from 1: `numbers([0, 3], 9)` is `1, 4`; more than four are counted."""
    return ", ".join(str(head + 1) for head in heads) if len(heads) <= 4 else f"{len(heads)} of {of}"


def create_figure(width: float, height: float) -> Figure:
    """Returns an empty figure, in inches, that arranges its axes by itself; call and draw inside `styled()`."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def shift_panels(count: int, most: int, ratio: float = 1.0) -> tuple[Figure, list[Axes]]:
    """Returns a figure of `count` panels over shifts from the query pixel, at most `most` beside each other.

    `ratio` is a panel's height over its width.
    """
    columns, panel = min(most, count), (PAGE - 0.5) / most
    rows = -(-count // columns)
    figure = create_figure(max(COLUMN, 0.5 + panel * columns), rows * (panel * ratio + 0.17) + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes in panels[count:]:
        axes.set_axis_off()
    figure.supxlabel("columns from the query pixel", fontsize=7)
    figure.supylabel("rows from the query pixel", fontsize=7)
    return figure, list(panels[:count])


def styled():
    """Returns a context with this project's sizes and fonts, whatever the user's matplotlibrc says."""
    return matplotlib.rc_context(matplotlib.rcParamsDefault | RC)  # pyright: ignore[reportArgumentType]


def decorate(axes: Axes) -> None:
    """Gives a plot of curves its light grid, and takes away the upper and right spine."""
    axes.grid(color="0.9", linewidth=0.4)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def show_image(axes: Axes, image: np.ndarray, alpha: float = 1.0) -> None:
    """Draws an image, `(H, W, C)` uint8, C of 1 or 3."""
    axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255, alpha=alpha)
    axes.set(xticks=[], yticks=[])


def show_attention(axes: Axes, probabilities: np.ndarray, gid: str) -> None:
    """Draws attention `(k, l)`, its largest value darkest; uniform attention as an even field of the middle colour."""
    largest = float(probabilities.max())
    top = 2 * largest if largest - probabilities.min() <= FLAT * largest else largest
    axes.imshow(probabilities, cmap=ATTENTION, vmin=0, vmax=top, gid=gid, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def mark_query(
    axes: Axes, row: float = 0.0, column: float = 0.0, size: float = 1.0, colour: str = QUERY, line: float = 0.9
) -> None:
    """Outlines the query pixel, whose centre stands at `(row, column)`, with a line in points."""
    corner = (column - size / 2, row - size / 2)
    axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=colour, linewidth=line, gid="query", zorder=5))


def arrange(figure: Figure) -> None:
    """Places the axes of a figure to which nothing is added any more that takes room; once, for all that is drawn."""
    with styled():
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
            figure.set_layout_engine(None)
    for axes in figure.axes:
        axes.apply_aspect()


def pixels(figure: Figure) -> np.ndarray:
    """Returns a figure as colours: `(height, width, 3)` uint8."""
    arrange(figure)
    with styled():
        figure.canvas.draw()
    assert isinstance(figure.canvas, FigureCanvasAgg)
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def name_of(path: Path) -> str:
    """Returns a figure's name without .png or .svg, for `save`; UserError for the name of another kind of file."""
    kind = path.suffix.lower().removeprefix(".")
    if kind in ("png", "svg"):
        return path.stem
    if kind in FigureCanvasBase.get_supported_filetypes():
        raise UserError(f"{path}: figures are written as .png and .svg; give {path.with_suffix('')}")
    return path.name


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes `name.png` and `name.svg` whole or not at all; returns their paths."""
    for text in figure.findobj(Text):  # names of classes and runs; SVG has no control characters
        text.set_text(printable(text.get_text()))
    folder.mkdir(parents=True, exist_ok=True)
    arrange(figure)
    paths = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = folder / f"{name}.{kind}"
        with styled(), replacing(path) as file:
            figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)
        paths.append(path)
    return paths


def save_animation(frames: list[np.ndarray], path: Path, milliseconds: int, last_milliseconds: int) -> list[Path]:
    """Writes an endless GIF of frames `(height, width, 3)` uint8, whole or not at all."""
    # One for all frames takes a third of the bytes less.
    palette = Image.fromarray(frames[-1]).quantize(64, Image.Quantize.MAXCOVERAGE)
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [milliseconds] * (len(images) - 1) + [last_milliseconds]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        images[0].save(file, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    return [path]
