"""Where heads look over training: centres of one layer at several epochs (Fig. 3), and an animation."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.centres import mark_centres
from attn_cnn_jax.analysis.figures.labels import number_heads
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.runs.positions import evenly

FRAMES = 100  # of an animation at most
RANGE = 0.5  # pixels beyond the outermost centre
FAR = 100  # half sides of a panel; Matplotlib would dash a line of any length, also where none of it shows


def draw(records: list[dict], layer: int) -> Figure:
    """Returns panels with the centres of one layer's heads, from 0, one per epoch (Fig. 3).

    Records are those of positions.jsonl, of which up to eight are shown, from the first to the last.
    """
    chosen = evenly(records, 8)
    last = records[-1]["layers"][layer]
    circles = "ellipses" if "covariance" in last or np.ndim(last["spread"]) == 3 else "circles"
    title = f"layer {layer + 1}: where its heads look; {circles}: one standard deviation of their attention"
    with style.styled():
        figure, panels = style.shift_panels(len(chosen), 4)
        reach, centres = extent(records, layer), {}
        for axes, record in zip(panels, chosen, strict=True):
            draw_epoch(axes, record, layer, reach)
            centres[axes] = np.array(record["layers"][layer]["centre"])
        figure.suptitle(title, fontsize=7, wrap=True)
        number_heads(figure, centres)
    return figure


def draw_epoch(axes: Axes, record: dict, layer: int, reach: float) -> None:
    """Draws one panel: centres at one epoch, circles or ellipses of one standard deviation around them."""
    axes.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal", title=f"epoch {record['epoch']:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10), integer=True))
    positions = record["layers"][layer]
    for head, covariance in enumerate(covariances(positions)):
        if not np.all(np.isfinite(covariance)):
            continue
        deviations, (row, column) = moments.main_axes(covariance)
        look = style.look(head)
        line = {"edgecolor": look.colour, "linestyle": look.line, "linewidth": 0.5, "gid": f"deviation {head}"}
        angle, at = np.degrees(np.arctan2(row, column)), positions["centre"][head][::-1]
        length, width = 2 * np.minimum(deviations, FAR * reach)
        axes.add_patch(Ellipse(at, length, width, angle=angle, fill=False, **line))
    mark_centres(axes, np.array(positions["centre"]))
    style.mark_query(axes)


def draw_paths(axes: Axes, centres: np.ndarray) -> None:
    """Draws the way of each head's centre, `(n, h, 2)`."""
    for head, path in enumerate(centres.swapaxes(0, 1)):
        axes.plot(path[:, 1], path[:, 0], "-", color=style.look(head).colour, linewidth=0.5, alpha=0.6)


def animate(records: list[dict], layer: int) -> list[np.ndarray]:
    """Returns frames `(height, width, 3)` of one layer's centres over training, with the way they came."""
    frames, chosen, reach = [], evenly(records, FRAMES), extent(records, layer)
    paths = np.array([record["layers"][layer]["centre"] for record in chosen])
    with style.styled():
        figure = style.create_figure(style.COLUMN, style.COLUMN)
        axes = figure.subplots()
        for n, record in enumerate(chosen):
            axes.clear()  # it stays where the first frame placed it
            draw_epoch(axes, record, layer, reach)
            draw_paths(axes, paths[: n + 1])
            axes.set(xlabel="columns from the query pixel", ylabel="rows from the query pixel")
            axes.set_title(f"layer {layer + 1}, {axes.get_title()}")
            number_heads(figure, {axes: paths[n]})
            frames.append(style.pixels(figure))
    return frames


def covariances(positions: dict) -> np.ndarray:
    """Returns the covariances `(h, 2, 2)` of a layer's recorded positions; infinite where a spread is singular."""
    if "covariance" in positions:
        return np.array(positions["covariance"])
    return moments.covariance_of_spread(np.array(positions["spread"]))


def extent(records: list[dict], layer: int) -> float:
    """Returns half the side of the square that holds the centres of nearly all heads at all epochs, in pixels."""
    centres = np.abs([record["layers"][layer]["centre"] for record in records]).max(axis=-1)
    return float(max(1.5, np.quantile(centres, 0.98))) + RANGE
