"""Lemma 3 drawn from a real layer (Fig. 11): a kernel's shifts, the heads' maps, and how far one spans the other."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.maps import QUERY
from attn_cnn_jax.analysis.heads import interior_queries
from attn_cnn_jax.theorem import span


def draw(attention: np.ndarray, shifts: np.ndarray, query: tuple[int, int], title: str) -> Figure:
    """Returns `E_q`, `A_q`, the weights `X` with `A_q X = E_q` as nearly as can be, and the residual of every query.

    Args:
      attention: of one layer, `(h, i, j, k, l)`; to one picture or its mean where it depends on content.
      shifts: of the kernel, `(n, 2)`.
      query: the query pixel of the first two panels.
      title: of the figure.
    """
    num_heads, height, width = attention.shape[:3]
    residuals = span.residuals(attention, shifts).reshape(height, width)
    inner = interior_queries((height, width))
    solved = span.mixing(attention, shifts, inner)
    expected, maps = span.indicators(shifts, (height, width), query), span.maps_of(attention, query)
    with style.styled():
        figure = style.create_figure(style.PAGE, 3.4)
        figure.suptitle(title, fontsize=7)
        grid = {"width_ratios": (1, 1, 1.1, 1.3)}
        shift_axes, head_axes, weight_axes, residual_axes = figure.subplots(1, 4, gridspec_kw=grid)
        names = [f"{row:+d},{column:+d}" for row, column in shifts]
        draw_columns(shift_axes, expected, names)
        shift_axes.set(title="$E_q$: shifts", ylabel="pixels, row by row")
        draw_columns(head_axes, maps / maps.max(axis=0), [str(head + 1) for head in range(num_heads)])
        head_axes.set(title="$A_q$: heads' attention")
        color_heads(head_axes.get_xticklabels())
        size = np.abs(solved.weights).max()
        shown = weight_axes.imshow(solved.weights, cmap="RdBu_r", vmin=-size, vmax=size, aspect="auto")
        weight_axes.set(title=f"X, residual {solved.residual:.2g}", xticks=range(len(shifts)), yticks=range(num_heads))
        weight_axes.set_xticklabels(names, rotation=90, fontsize=4.5)
        weight_axes.set_yticklabels([str(head + 1) for head in range(num_heads)], fontsize=5)
        color_heads(weight_axes.get_yticklabels())
        figure.colorbar(shown, ax=weight_axes, location="bottom", pad=0.02, aspect=12).ax.tick_params(labelsize=5)
        residual_axes.imshow(residuals, cmap=style.ATTENTION, vmin=0, vmax=1, gid="residuals")
        style.mark_query(residual_axes, *query, colour=QUERY)
        inside = np.mean([residuals[q] for q in inner])
        residual_axes.set(
            title=f"residual by query\n(0: Lemma 3 holds)\nmean inside {inside:.2g}", xticks=[], yticks=[]
        )
        scale = ScalarMappable(Normalize(0, 1), style.ATTENTION)
        figure.colorbar(scale, ax=residual_axes, location="bottom", pad=0.02, ticks=[0, 1]).ax.set_xticklabels(
            ["0", "1"], fontsize=5
        )
        for axes in (shift_axes, head_axes, weight_axes):
            axes.title.set_parse_math(True)
    return figure


def draw_columns(axes: Axes, columns: np.ndarray, names: list[str]) -> None:
    """Draws vectors over the pixels side by side, light for 0 and dark for 1."""
    axes.imshow(columns, cmap=style.ATTENTION, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set(xticks=range(len(names)), yticks=[])
    axes.set_xticklabels(names, rotation=90, fontsize=4.5)


def color_heads(labels) -> None:
    """Gives the number of each head its colour."""
    for head, label in enumerate(labels):
        label.set_color(style.look(head).colour)
