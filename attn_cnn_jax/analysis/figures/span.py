"""Lemma 3 drawn from a real layer (Fig. 11): a kernel's shifts, the heads' maps, and how far one spans the other."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.maps import QUERY
from attn_cnn_jax.analysis.heads import interior_queries
from attn_cnn_jax.arrays import SharedAttention
from attn_cnn_jax.theorem import span


def draw(attention: SharedAttention, shifts: Int[np.ndarray, "n 2"], query: tuple[int, int], title: str) -> Figure:
    """Returns `E_q`, `A_q`, the weights `X` with `A_q X = E_q` as nearly as can be, and the residual of every query.

    The attention of one layer, to one image or its mean where it depends on content, and the shifts of a kernel.
    """
    num_heads, height, width = attention.shape[:3]
    residuals = span.residuals(attention, shifts).reshape(height, width)
    inner = interior_queries((height, width))
    weights, residual = span.mixing(attention, shifts, inner)
    ((maps,), (indicators,)), size = span.systems(attention, shifts, [query]), np.abs(weights).max()
    heads, names = [str(head + 1) for head in range(num_heads)], [f"{row:+d},{column:+d}" for row, column in shifts]
    with style.styled():
        figure = style.create_figure(style.PAGE, 3.4)
        figure.suptitle(title, fontsize=7)
        panels = figure.subplots(1, 4, gridspec_kw={"width_ratios": (1, 1, 1.1, 1.3)})
        shift_axes, head_axes, weight_axes, residual_axes = panels
        draw_columns(shift_axes, indicators, names)
        shift_axes.set(title="$E_q$: shifts", ylabel="pixels, row by row")
        draw_columns(head_axes, maps / maps.max(axis=0), heads)
        head_axes.set(title="$A_q$: heads' attention")
        shown = weight_axes.imshow(weights, cmap="RdBu_r", vmin=-size, vmax=size, aspect="auto")
        weight_axes.set_title(f"X, residual {residual:.2g}")
        weight_axes.set_xticks(range(len(shifts)), names, rotation=90, fontsize=4.5)
        weight_axes.set_yticks(range(num_heads), heads, fontsize=5)
        color_heads(head_axes.get_xticklabels())
        color_heads(weight_axes.get_yticklabels())
        figure.colorbar(shown, ax=weight_axes, location="bottom", pad=0.02, aspect=12).ax.tick_params(labelsize=5)
        shown = residual_axes.imshow(residuals, cmap=style.ATTENTION, vmin=0, vmax=1, gid="residuals")
        style.mark_query(residual_axes, *query, colour=QUERY)
        inside = np.mean([residuals[q] for q in inner])
        text = f"residual by query\n(0: Lemma 3 holds)\nmean inside {inside:.2g}"
        residual_axes.set(title=text, xticks=[], yticks=[])
        bar = figure.colorbar(shown, ax=residual_axes, location="bottom", pad=0.02, ticks=[0, 1])
        bar.ax.set_xticklabels(["0", "1"], fontsize=5)
        for axes in panels[:3]:
            axes.title.set_parse_math(True)
    return figure


def draw_columns(axes: Axes, columns: np.ndarray, names: list[str]) -> None:
    """Draws vectors over the pixels side by side, light for 0 and dark for 1."""
    axes.imshow(columns, cmap=style.ATTENTION, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_yticks([])
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=4.5)


def color_heads(labels: Sequence[Text]) -> None:
    """Gives the number of each head its colour."""
    for head, label in enumerate(labels):
        label.set_color(style.look(head).colour)
