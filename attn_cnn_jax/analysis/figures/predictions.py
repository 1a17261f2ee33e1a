"""Images, the most probable classes of each, and where the heads look: a row per image, a panel per layer."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.output import printable

MOST_IMAGES = 8  # rows of a figure
LEVEL = 0.5  # of a head's largest probability, at its contour
SIDE = 1.15  # inches of a panel


def draw(
    images: Sequence[UInt8[np.ndarray, "H W C"]],
    names: Sequence[str],
    classes: Sequence[Sequence[tuple[str, float]]],
    attention: Sequence[Sequence[Float[np.ndarray, "h i j k l"]]],
) -> Figure:
    """Returns a figure of the first images, at most MOST_IMAGES.

    They have names, the most probable classes with their probabilities, and one array of attention per layer; no layers
    for a network without attention. Of each head the contour is drawn at half of its largest probability, seen from the
    query pixel in the middle.
    """
    count, layers = min(len(images), MOST_IMAGES), len(attention[0])
    with style.styled():
        figure = style.create_figure(SIDE * (2.4 + layers), SIDE * count + 0.3)
        panels = figure.subplots(count, 2 + layers, squeeze=False, width_ratios=[1, 1.4, *[1] * layers])
        for row, image, name, found, maps in zip(panels, images, names, classes, attention, strict=False):
            style.show_image(row[0], image)
            row[0].set_title(name)
            draw_classes(row[1], found)
            for axes, layer in zip(row[2:], maps, strict=True):
                style.show_image(axes, image, alpha=0.45)
                draw_heads(axes, layer, image.shape[:2])
        for n, axes in enumerate(panels[0, 2:], start=1):
            axes.set_title(f"layer {n}")
    return figure


def draw_classes(axes: Axes, classes: Sequence[tuple[str, float]]) -> None:
    """Draws a bar per class, the most probable on top."""
    places = list(range(len(classes)))
    axes.barh(places, [probability for _, probability in classes], color=style.COLOURS[4], height=0.6)
    for place, (_, probability) in enumerate(classes):
        axes.text(probability + 0.02, place, f"{probability:.0%}", va="center", fontsize=6)
    axes.set_yticks(places, [printable(name) for name, _ in classes])
    axes.set(xlim=(0, 1.35), xticks=[], ylim=(len(classes) - 0.4, -0.6))
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw_heads(axes: Axes, layer: Float[np.ndarray, "h i j k l"], size: tuple[int, int]) -> None:
    """Draws the contour of every head's attention from the middle pixel, over an image of `size` pixels."""
    grid = layer.shape[-2:]
    query, scale = (grid[0] // 2, grid[1] // 2), (size[0] / grid[0], size[1] / grid[1])
    y, x = ((np.arange(n) + 0.5) * step - 0.5 for n, step in zip(grid, scale, strict=True))
    for head, probabilities in enumerate(layer[:, query[0], query[1]]):
        level, look = LEVEL * probabilities.max(), style.look(head)
        if min(grid) >= 2 and probabilities.min() < level:  # a uniform head has no contour
            axes.contour(x, y, probabilities, [level], colors=look.colour, linestyles=look.line, linewidths=0.8)
    style.mark_query(axes, y[query[0]], x[query[1]], size=min(scale), line=0.6)
