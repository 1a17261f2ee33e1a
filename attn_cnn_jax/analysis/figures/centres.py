"""Where heads look: their centres, with contours of their attention, in every layer (Fig. 4, 12 to 14)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.analysis.figures import contours, style
from attn_cnn_jax.analysis.figures.labels import number_heads
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.runs.run import Run

SHARES = {0.9: 0.5, 0.5: 1.0}  # of the attention inside a contour: width of its line, in points
MOST_PIECES = 2  # a contour of more closed lines than this cannot be read; content scatters attention so


def draw_run(run: Run, layers: list[np.ndarray]) -> Figure:
    """Returns where all heads look from the central query pixel, with contours that hold 50% and 90% (Fig. 4).

    Args:
      run: the run.
      layers: one `(h, i, j, k, l)` per layer, as `pictures.mean_attention` gives them.
    """
    query = pictures.centre(run)
    blocks = run.model.blocks
    found = [layer_centres(block.attention, layer, query) for block, layer in zip(blocks, layers, strict=True)]
    return draw_layers(layers, found, query)


def draw_layers(layers: list[np.ndarray], centres: list[np.ndarray], query: tuple[int, int]) -> Figure:
    """Returns centres of all heads of all layers, with contours that hold 50% and 90% of the attention (Fig. 4).

    Args:
      layers: one `(h, i, j, k, l)` array of probabilities per layer.
      centres: one `(h, 2)` array of shifts per layer, pixels, row first.
      query: the query pixel.
    """
    height, width = layers[0].shape[-2:]
    with style.styled():
        columns = min(3, len(layers))
        rows = -(-len(layers) // columns)
        panel = (style.PAGE - 0.5) / 3
        figure = style.create_figure(
            max(style.COLUMN, 0.5 + panel * columns), rows * (panel * height / width + 0.17) + 0.5
        )
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        scattered = []
        for n, axes in enumerate(panels.flat):
            if n >= len(layers):
                axes.set_axis_off()
                continue
            axes.set(
                xlim=(-0.5 - query[1], width - 0.5 - query[1]),
                ylim=(height - 0.5 - query[0], -0.5 - query[0]),
                aspect="equal",
                title=f"layer {n + 1}",
            )
            maps = layers[n][:, query[0], query[1]]
            drawn = [draw_contours(axes, probabilities, query, head) for head, probabilities in enumerate(maps)]
            mark_centres(axes, centres[n])
            scattered.append([head for head, there in enumerate(drawn) if not there])
            if scattered[-1]:
                axes.set_title(f"{axes.get_title()}, scattered: {style.numbers(scattered[-1], len(maps))}")
            style.mark_query(axes)
        figure.supxlabel("columns from the query pixel", fontsize=7)
        figure.supylabel("rows from the query pixel", fontsize=7)
        add_legend(figure, any(scattered))
        number_heads(figure, dict(zip(panels.flat, centres, strict=False)))
    return figure


def add_legend(figure: Figure, scattered: bool) -> None:
    """Adds what the two contours hold, and why some heads have none."""
    handles = [Line2D([], [], color="0.2", linewidth=SHARES[share]) for share in sorted(SHARES)]
    texts = [f"holds {share:.0%} of a head's attention" for share in sorted(SHARES)]
    if scattered:
        handles.append(Line2D([], [], linestyle=""))
        texts.append(f"scattered: no contours, they would fall into more than {MOST_PIECES} pieces")
    columns = 2 if figure.get_figwidth() >= style.PAGE else 1
    figure.legend(handles, texts, loc="outside upper center", ncols=columns, frameon=False)


def draw_contours(axes: Axes, probabilities: np.ndarray, query: tuple[int, int], head: int) -> bool:
    """Draws the contours of one head's attention `(k, l)` around the query pixel; none for uniform attention.

    Returns:
      Whether they can be read; where they cannot, nothing is drawn.
    """
    rows, columns, density = contours.density(probabilities)
    levels = {share: contours.level(density, share) for share in SHARES}
    if any(level is not None and contours.pieces(density, level) > MOST_PIECES for level in levels.values()):
        return False
    look = style.look(head)
    for share, level in levels.items():
        if level is not None:
            lines = axes.contour(
                columns - query[1],
                rows - query[0],
                density,
                [level],
                colors=look.colour,
                linewidths=SHARES[share],
                linestyles=look.line,
            )
            lines.set_gid(f"head {head} {share:.0%}")
    return True


def mark_centres(axes: Axes, centres: np.ndarray) -> None:
    """Draws a mark at every centre `(h, 2)`; those outside the axes are named in the title."""
    left, right = sorted(axes.get_xlim())
    top, bottom = sorted(axes.get_ylim())
    outside = []
    for head, (row, column) in enumerate(centres):
        look = style.look(head)
        axes.plot(column, row, look.marker, color=look.colour, markersize=3, markeredgewidth=0, gid=f"centre {head}")
        if not (left <= column <= right and top <= row <= bottom):
            outside.append(head)
    if outside:
        axes.set_title(f"{axes.get_title()}, outside: {style.numbers(outside, len(centres))}")


def layer_centres(attention: SelfAttention, probabilities: np.ndarray, query: tuple[int, int]) -> np.ndarray:
    """Returns the centres of a layer's heads relative to the query pixel, `(h, 2)` pixels.

    The parameters where these are the attention (quadratic without content), which need not lie in the
    picture; else the centre of mass of the query pixel's attention.
    """
    if isinstance(attention.position, CentredEncoding) and not attention.depends_on_content:
        return np.asarray(attention.position.centre[...], np.float64)
    return moments.centre_of_mass(probabilities[:, query[0], query[1]]) - query
