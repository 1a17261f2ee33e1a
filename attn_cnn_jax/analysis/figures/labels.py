"""Numbers beside marks, placed so that they cover neither each other nor a mark."""

from collections.abc import Iterator

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from attn_cnn_jax.analysis.figures import style

# In points; of a digit, of two digits twice the width.
FONT_SIZE, HALF_HEIGHT, HALF_WIDTH, HALF_MARK = 5, 2.0, 1.6, 1.6
RADII = (4.2, 6, 8, 10.5, 13, 16, 20)  # points from a mark to the middle of its number, nearest first
ANGLES = np.radians((45, -45, 135, -135, 0, 180, 90, -90, 22, 68, 112, 158, -22, -68, -112, -158))
OFFSETS = np.multiply.outer(RADII, np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=-1)).reshape(-1, 2)
LINE_FROM = 7.0  # points; farther away, a thin line leads to the mark


def number_heads(figure: Figure, centres: dict[Axes, np.ndarray]) -> list[Annotation]:
    """Writes each head's number beside its mark, in its colour; marks outside the axes get none.

    Everything else is drawn in the figure; `centres` are the marks of each axes, `(h, 2)` in pixels, row first.
    """
    style.arrange(figure)  # only now is it known where pixels are on paper
    return [note for axes, marks in centres.items() for note in _number(axes, np.asarray(marks))]


def _number(axes: Axes, centres: np.ndarray) -> Iterator[Annotation]:
    """Boxes are `(left, bottom, right, top)`, in points."""
    scale = 72 / axes.figure.dpi
    marks, frame = axes.transData.transform(centres[:, ::-1]) * scale, np.asarray(axes.bbox.extents) * scale
    inside = np.flatnonzero(np.all((marks >= frame[:2]) & (marks <= frame[2:]), axis=1)).tolist()
    (left, bottom), (right, top) = np.sort(axes.transData.transform([(-0.5, -0.5), (0.5, 0.5)]) * scale, axis=0)
    outline = [
        (left, bottom, left, top),
        (right, bottom, right, top),
        (left, bottom, right, bottom),
        (left, top, right, top),
    ]  # of the query pixel
    taken = [*np.hstack([marks[inside] - HALF_MARK, marks[inside] + HALF_MARK]), *outline]
    for head in inside:
        half = HALF_WIDTH * len(str(head + 1)), HALF_HEIGHT
        offset, box = _free_place(marks[head], np.array(half), np.array(taken), frame)
        taken.append(box)
        colour = style.look(head).colour
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.3, "shrinkA": 0, "shrinkB": 1}
        note = axes.annotate(
            str(head + 1),
            (centres[head][1], centres[head][0]),
            xytext=(offset[0], offset[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=FONT_SIZE,
            color=colour,
            arrowprops=line if np.hypot(*offset) > LINE_FROM else None,
            path_effects=[patheffects.withStroke(linewidth=1.2, foreground="white")],
            zorder=6,
            gid=f"number {head}",
        )
        note.set_in_layout(False)
        yield note


def _free_place(
    mark: np.ndarray, half: np.ndarray, taken: np.ndarray, frame: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nearest offset in points at which a number covers nothing, or least, and the box it fills."""
    low, high = mark + OFFSETS - half, mark + OFFSETS + half
    # Each half a point more.
    shared = np.minimum(high[:, None], taken[:, 2:]) - np.maximum(low[:, None], taken[:, :2]) + 1
    covered = np.maximum(shared, 0).prod(axis=-1).sum(axis=-1)
    outside = np.any((low < frame[:2]) | (high > frame[2:]), axis=-1)
    best = np.argmin(covered + 100 * outside)
    return OFFSETS[best], np.concatenate([low[best], high[best]])
