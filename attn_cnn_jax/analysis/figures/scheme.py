"""How a layer of attention computes one pixel, drawn from a real layer (the scheme of Fig. 1)."""

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.maps import QUERY
from attn_cnn_jax.models.attention import moments

ROW = 0.36  # inches per head
LEAST = 2.2  # inches


def draw(
    attention: Float[np.ndarray, "h i j k l"],
    value_maps: Float[np.ndarray, "h d o"],
    query: tuple[int, int],
    title: str,
) -> Figure:
    """Returns the scheme of a layer: input, each head's attention and `W^(h)`, and the output pixel they add up to."""
    num_heads, height, width = len(attention), *attention.shape[-2:]
    maps = attention[:, query[0], query[1]]
    size = np.quantile(np.abs(value_maps), 0.98)  # the few largest would leave the others white
    with style.styled():
        total = max(LEAST, ROW * num_heads) + 0.5
        figure = style.create_figure(style.PAGE, total)
        figure.set_layout_engine("none")
        figure.suptitle(title, fontsize=7, y=1 - 0.08 / total)
        bottom, top = 0.14 / total, 1 - 0.42 / total
        side, tall = 1.45 / style.PAGE, 1.45 / total * height / width
        low = (bottom + top - tall) / 2
        source, target = (figure.add_axes((left, low, side, tall)) for left in (0.02, 0.98 - side))
        for axes, name in (
            (source, f"input X, {height}x{width} pixels:\nquery q, and where each head looks"),
            (target, "output: sum over heads"),
        ):
            axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[], aspect="equal")
            axes.set_title(name, fontsize=6)
            axes.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, color="0.88", linewidth=0.3)
            axes.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, color="0.88", linewidth=0.3)
        target.add_patch(Rectangle((query[1] - 0.5, query[0] - 0.5), 1, 1, facecolor="0.25", gid="output"))
        style.mark_query(source, *query)
        step = (top - bottom) / num_heads
        box = step * 0.84
        wide = box * total / style.PAGE
        for head, (row, column) in enumerate(moments.centre_of_mass(maps)):
            colour = style.look(head).colour
            low = top - (head + 1) * step + (step - box) / 2
            seen = figure.add_axes((0.445 - wide / 2, low, wide * width / height, box))
            map_ = figure.add_axes((0.555 - wide / 2, low, wide, box))
            style.show_attention(seen, maps[head], f"map {head}")
            style.mark_query(seen, *query, colour=QUERY, line=0.4)
            map_.imshow(value_maps[head], cmap="RdBu_r", vmin=-size, vmax=size, aspect="auto", gid=f"values {head}")
            map_.set(xticks=[], yticks=[])
            for axes in (seen, map_):
                axes.spines[:].set_edgecolor(colour)
            name = {"color": colour, "fontsize": 6, "fontweight": "bold", "ha": "center", "va": "center"}
            figure.text(0.5, low + box / 2, str(head + 1), **name)
            source.plot(column, row, style.look(head).marker, color=colour, markersize=3, gid=f"centre {head}")
            last = value_maps.shape[2] - 0.5, (value_maps.shape[1] - 1) / 2
            for start, from_, end, to in (
                ((column, row), source, (-0.5, height / 2 - 0.5), seen),
                (last, map_, (query[1], query[0]), target),
            ):
                line = {"color": colour, "linewidth": 0.5, "alpha": 0.8, "zorder": 4}
                figure.add_artist(ConnectionPatch(start, end, "data", "data", axesA=from_, axesB=to, **line))
            if head == 0:
                seen.set_title("attention of q", fontsize=6)
                map_.set_title("W$^{(h)}$", fontsize=6, parse_math=True)
    return figure
