"""Attention maps of one query pixel: layers by heads (Fig. 5 to 7), also beside the image (Fig. 8 to 10)."""

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure

from attn_cnn_jax.analysis.figures import ORDERS, style
from attn_cnn_jax.models.attention import moments

QUERY = "#0080FF"  # seen on light and on dark pixels of the maps


def title(query: tuple[int, int], num_images: int | None, order: str) -> str:
    """Returns what a figure of maps shows; `num_images` where they are a mean over images."""
    mean = f", mean over {num_images} test images" if num_images else ""
    return f"attention of query pixel {query[0]},{query[1]} (outlined){mean}; {ORDERS[order]}"


def draw(
    layers: list[np.ndarray], query: tuple[int, int], order: str, title: str, labels: list[list[str]] | None = None
) -> Figure:
    """Returns maps of every head (columns) of every layer (rows) for one query pixel.

    From probabilities `(h, i, j, k, l)` of each layer, whose numbers of heads may differ; for the order see `ordered`.
    `labels` are by layer and head a line below each number.
    """
    most = max(len(layer) for layer in layers)
    with style.styled():
        width = style.PAGE if most <= 10 else 7.0
        lines = 0.08 * len(layers) if labels else 0.0
        figure = style.create_figure(width, size(layers, width) + 0.25 + lines)
        figure.suptitle(title, fontsize=7)
        draw_maps(figure, layers, query, order, labels)
    return figure


def draw_image(
    image: np.ndarray, name: str, layers: list[np.ndarray], query: tuple[int, int], order: str, downsample: int
) -> Figure:
    """Returns one image, `(H, W, C)` uint8, its query pixel marked, and beside it the maps for this image alone.

    `name` says in one or more lines what it shows; a pixel of attention is a square of its pixels of side `downsample`.
    """
    with style.styled():
        width = 7.0
        figure = style.create_figure(width, max(1.8, size(layers, width * 0.78) + 0.25))
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(0.22, 0.78))[0]
        axes = left.subplots()
        style.show_image(axes, image)
        axes.set_title(name)
        centre = [downsample * position + (downsample - 1) / 2 for position in query]
        style.mark_query(axes, *centre, size=downsample, colour="#FF00CC")
        right.suptitle(title(query, None, order), fontsize=7)
        draw_maps(right, layers, query, order)
    return figure


def draw_maps(
    figure: Figure | SubFigure,
    layers: list[np.ndarray],
    query: tuple[int, int],
    order: str,
    labels: list[list[str]] | None = None,
) -> None:
    """Draws the grid of maps, each scaled to its own largest probability, its head's number above in its colour."""
    most = max(len(layer) for layer in layers)
    panels = figure.subplots(len(layers), most, squeeze=False, gridspec_kw={"wspace": 0.02, "hspace": 0.02})
    for n, layer in enumerate(layers):
        maps = layer[:, query[0], query[1]]
        # In small pixels a thick outline would hide what the query attends to in itself.
        line = 0.9 if max(maps.shape[1:]) <= 10 else 0.5
        for axes in panels[n]:
            axes.set(xticks=[], yticks=[])
        for axes in panels[n, len(maps) :]:
            axes.set_axis_off()
        for axes, head in zip(panels[n], ordered(maps, query, order), strict=False):
            colour = style.look(head).colour
            style.show_attention(axes, maps[head], f"map {head}")
            style.mark_query(axes, *query, colour=QUERY, line=line)
            axes.set_title(f"{head + 1}", color=colour, fontsize=6, fontweight="bold", pad=1.5)
            if labels:
                axes.set_xlabel(labels[n][head], fontsize=4.5 if most > 6 else 6, labelpad=1)
            axes.spines[:].set_edgecolor(colour)
        panels[n, 0].set_ylabel(f"layer {n + 1}")
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, 1), style.ATTENTION), ax=list(panels.flat), location="bottom",
        shrink=0.4, aspect=30, pad=0.02, ticks=[0, 1],
    )  # fmt: skip
    bar.ax.set_xticklabels(["0", "largest probability of the map"])


def ordered(maps: np.ndarray, query: tuple[int, int], order: str) -> list[int]:
    """Returns the order in which a layer's heads are shown, from the attention `(h, k, l)` of the query pixel.

    "distance" is by the mean distance attended to, nearest first; "position" by the row, then the column of the pixel
    nearest to the centre of mass; "index" as they are.
    """
    if order == "distance":
        return np.argsort(moments.distance(maps, query), kind="stable").tolist()
    if order == "position":
        nearest = np.floor(moments.centre_of_mass(maps) + 0.5)
        return np.lexsort((nearest[:, 1], nearest[:, 0])).tolist()
    return list(range(len(maps)))


def size(layers: list[np.ndarray], width: float) -> float:
    """Returns the height in inches of the grid of maps at a width."""
    height_per_map = (width - 0.3) / max(len(layer) for layer in layers) * layers[0].shape[-2] / layers[0].shape[-1]
    return len(layers) * (height_per_map + 0.12) + 0.3
