"""The figures of a report: anatomy by depth, the cost of replacing heads, attention maps."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.figures import maps, style
from attn_cnn_jax.instrument.anatomy import PARTS
from attn_cnn_jax.instrument.report import Report

COLOURS = dict(zip(PARTS, (style.COLOURS[2], style.COLOURS[3], style.COLOURS[5]), strict=True))  # as on the page


def draw(report: Report) -> dict[str, Figure]:
    """Returns the figures by name: maps of the middle patch, means over images; anatomy, and what replacing costs."""
    (height, width), images = report.grid, report.images
    shown = [mean for mean, grid in zip(report.mean_attention, report.grids, strict=True) if grid == report.grid]
    layers = [mean.reshape(-1, height, width, height, width) for mean in shown]
    title = f"attention of the middle patch (outlined), mean over {images} images; {maps.ORDERS[maps.ORDER]}"
    figures = {"maps": maps.draw(layers, (height // 2, width // 2), maps.ORDER, title)}
    with style.styled():
        figures["anatomy"] = style.create_figure(style.PAGE, 2.4)
        panels = figures["anatomy"].subplots(1, 2 if report.replaced else 1, squeeze=False)[0]
        for axes, drawing in zip(panels, (draw_anatomy, draw_replaced), strict=False):
            drawing(axes, report)
            style.decorate(axes)
        figures["anatomy"].legend(loc="outside lower center", ncols=5, frameon=False)
    return figures


def draw_anatomy(axes: Axes, report: Report) -> None:
    """Draws a bar per head, layer by layer, its three shares one on the other; heads from relative to content."""
    for n, layer in enumerate(report.anatomies, start=1):
        heights = 100 * layer.shares[np.argsort(-layer.shares[:, 0])]
        width = 0.9 / len(heights)
        places = n - 0.45 + width * (np.arange(len(heights)) + 0.5)
        below = np.cumsum(heights, axis=1) - heights
        for part, (name, colour) in enumerate(COLOURS.items()):
            bar = {"color": colour, "gid": f"{name} {n}", "label": name if n == 1 else None}
            axes.bar(places, heights[:, part], width, below[:, part], **bar)
    axes.set(xlabel="layer", ylabel="share of the variance (%)", ylim=(0, 100), title="what explains attention")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_replaced(axes: Axes, report: Report) -> None:
    """Draws accuracy, and the share of multiply-adds saved, over the number of heads replaced, cheapest first."""
    heads = [row["heads"] for row in report.replaced]
    names = [name for name in ("accuracy", "agreement", "cosine", "saved") if name in report.replaced[0]]
    for n, name in enumerate(names):
        line = {"color": style.look(n).colour, "markersize": 2.5, "linewidth": 1, "label": name, "gid": name}
        axes.plot(heads, [100 * row[name] for row in report.replaced], "o-", **line)
    axes.set(xlabel=f"heads replaced by kernels of size {report.kernel_size}", ylabel="%", ylim=(0, 103))
