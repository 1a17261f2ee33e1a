"""The figures of a report: anatomy and distance by depth, the cost of replacing heads, attention maps."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.figures import maps, style
from attn_cnn_jax.instrument.anatomy import PARTS
from attn_cnn_jax.instrument.report import Report

COLOURS = dict(zip(PARTS, (style.COLOURS[2], style.COLOURS[3], style.COLOURS[5]), strict=True))  # as on the page


def draw(report: Report) -> dict[str, Figure]:
    """Returns the figures by name: maps of the middle patch, means over images; anatomy; distance by depth.

    Beside the anatomy, of networks, what replacing heads costs. Maps have below them the shift that the head attends to
    most, down and right, and the share of its attention there.
    """
    (height, width), images = report.grid, report.images
    chosen = [n for n, grid in enumerate(report.grids) if grid == report.grid]
    layers = [report.mean_attention[n].reshape(-1, height, width, height, width) for n in chosen]
    shifts = [report.layers_measured[n].shift for n in chosen]
    labels = [
        [f"{row:+.0f} {column:+.0f}, {share:.0%}" for row, column, share in zip(*of, strict=True)] for of in shifts
    ]
    title = f"attention of the middle patch (outlined), mean over {images} images; below: main shift and its share"
    figures = {"maps": maps.draw(layers, (height // 2, width // 2), "index", title, labels)}
    with style.styled():
        figures["anatomy"] = style.create_figure(style.PAGE, 2.4)
        panels = figures["anatomy"].subplots(1, 2 if report.replaced else 1, squeeze=False)[0]
        figures["distance"] = style.create_figure(style.COLUMN, 2.2)
        drawings = draw_distance, draw_anatomy, draw_replaced
        for axes, drawing in zip([figures["distance"].subplots(), *panels], drawings, strict=False):
            drawing(axes, report)
            style.decorate(axes)
        figures["anatomy"].legend(loc="outside lower center", ncols=5, frameon=False)
    return figures


def draw_anatomy(axes: Axes, report: Report) -> None:
    """Draws a bar per head, in their order and layer by layer, its three shares one on the other."""
    for n, layer in enumerate(report.anatomies, start=1):
        heights = 100 * layer.shares
        width = 0.9 / len(heights)
        places = n - 0.45 + width * (np.arange(len(heights)) + 0.5)
        below = np.cumsum(heights, axis=1) - heights
        for part, (name, colour) in enumerate(COLOURS.items()):
            bar = {"color": colour, "gid": f"{name} {n}", "label": name if n == 1 else None}
            axes.bar(places, heights[:, part], width, below[:, part], **bar)
    axes.set(ylabel="share of the variance (%)", ylim=(0, 100), title="what explains attention")
    name_layers(axes, report)


def draw_distance(axes: Axes, report: Report) -> None:
    """Draws the mean distance between query and key, in patches: a dot per head, and the mean of each layer."""
    by_layer = [layer.distance for layer in report.statistics]
    look = {
        "vmin": 0,
        "vmax": 100,
        "cmap": style.ATTENTION,
        "s": 12,
        "linewidths": 0.3,
        "edgecolors": "0.4",
        "zorder": 3,
    }
    drawn = [
        axes.scatter(np.full(len(distances), n), distances, c=100 * layer.shares[:, 0], gid=f"layer {n}", **look)
        for n, (distances, layer) in enumerate(zip(by_layer, report.anatomies, strict=True), start=1)
    ]
    means = [distances.mean() for distances in by_layer]
    axes.plot(range(1, len(means) + 1), means, color="0.5", linewidth=1, gid="mean")
    axes.figure.colorbar(drawn[-1], ax=axes, label="relative (%)")
    axes.set(ylabel="distance (patches)", ylim=(0, None), title="how far heads look")
    name_layers(axes, report)


def name_layers(axes: Axes, report: Report) -> None:
    """Gives every layer a tick with its number."""
    numbers = [str(layer.number + 1) for layer in report.layers_measured]
    axes.set_xticks(range(1, len(numbers) + 1), numbers, fontsize=6 if len(numbers) <= 16 else 4)
    axes.set_xlabel("layer")


def draw_replaced(axes: Axes, report: Report) -> None:
    """Draws accuracy, and the share of multiply-adds saved, over the number of heads replaced, cheapest first."""
    heads = [row["heads"] for row in report.replaced]
    names = [name for name in ("accuracy", "agreement", "cosine", "saved") if name in report.replaced[0]]
    for n, name in enumerate(names):
        line = {"color": style.look(n).colour, "markersize": 2.5, "linewidth": 1, "label": name, "gid": name}
        axes.plot(heads, [100 * row[name] for row in report.replaced], "o-", **line)
    axes.set(xlabel=f"heads replaced by kernels of size {report.kernel_size}", ylabel="%", ylim=(0, 103))
