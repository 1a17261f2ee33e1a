"""Pictures, the most probable classes of each, and where the heads look: a row per picture, a panel per layer."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.output import printable

MOST_PICTURES = 8  # rows of a figure
LEVEL = 0.5  # of a head's largest probability, at its contour
SIDE = 1.15  # inches of a panel

Layers = Sequence[Float[np.ndarray, "h i j k l"]]


def draw(
    pictures: Sequence[UInt8[np.ndarray, "H W C"]],
    names: Sequence[str],
    classes: Sequence[Sequence[tuple[str, float]]],
    attention: Sequence[Layers],
) -> Figure:
    """Returns a figure of the first pictures, at most MOST_PICTURES.

    Args:
      pictures: C of 1 or 3.
      names: of the pictures.
      classes: per picture the most probable ones, with their probabilities.
      attention: per picture one array per layer; no layers for a network without attention. Of each head the contour
        is drawn at half of its largest probability, seen from the query pixel in the middle.
    """
    count, layers = min(len(pictures), MOST_PICTURES), len(attention[0])
    with style.styled():
        figure = style.create_figure(SIDE * (2.4 + layers), SIDE * count + 0.3)
        panels = figure.subplots(count, 2 + layers, squeeze=False, width_ratios=[1, 1.4, *[1] * layers])
        for row, picture, name, found, maps in zip(panels, pictures, names, classes, attention, strict=False):
            show(row[0], picture)
            row[0].set_title(name)
            draw_classes(row[1], found)
            for axes, layer in zip(row[2:], maps, strict=True):
                show(axes, picture, alpha=0.45)
                draw_heads(axes, layer, picture.shape[:2])
        for n, axes in enumerate(panels[0, 2:], start=1):
            axes.set_title(f"layer {n}")
    return figure


def show(axes: Axes, picture: UInt8[np.ndarray, "H W C"], alpha: float = 1.0) -> None:
    """Draws a picture."""
    pixels = picture.squeeze(-1) if picture.shape[-1] == 1 else picture
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, alpha=alpha)
    axes.set(xticks=[], yticks=[])


def draw_classes(axes: Axes, classes: Sequence[tuple[str, float]]) -> None:
    """Draws a bar per class, the most probable on top."""
    places = list(range(len(classes)))
    axes.barh(places, [probability for _, probability in classes], color=style.COLOURS[4], height=0.6)
    for place, (_, probability) in zip(places, classes, strict=True):
        axes.text(min(probability, 0.7) + 0.02, place, f"{probability:.0%}", va="center", fontsize=6)
    axes.set_yticks(places, [printable(name) for name, _ in classes])
    axes.set(xlim=(0, 1), xticks=[], ylim=(len(classes) - 0.4, -0.6))
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw_heads(axes: Axes, layer: Float[np.ndarray, "h i j k l"], size: tuple[int, int]) -> None:
    """Draws the contour of every head's attention from the middle pixel, over a picture of `size` pixels."""
    rows, columns = layer.shape[-2:]
    height, width = size
    query = rows // 2, columns // 2
    scale = height / rows, width / columns
    y, x = ((np.arange(n) + 0.5) * step - 0.5 for n, step in ((rows, scale[0]), (columns, scale[1])))
    for head, probabilities in enumerate(layer[:, query[0], query[1]]):
        largest, look = probabilities.max(), style.look(head)
        if min(rows, columns) < 2 or probabilities.min() >= LEVEL * largest:
            continue  # a uniform head has no contour
        line = {"colors": look.colour, "linestyles": look.line, "linewidths": 0.8}
        axes.contour(x, y, probabilities, levels=[LEVEL * largest], **line)
    centre = [(position + 0.5) * step - 0.5 for position, step in zip(query, scale, strict=True)]
    style.mark_query(axes, *centre, size=min(scale), line=0.6)
