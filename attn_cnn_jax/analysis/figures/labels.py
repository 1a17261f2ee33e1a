"""Numbers beside marks, placed so that they cover neither each other nor a mark."""

from collections.abc import Iterator

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from attn_cnn_jax.analysis.figures import style

FONT_SIZE = 5
HALF_HEIGHT = 2.0  # points, of a digit
HALF_WIDTH = 1.6  # points, of a digit; of two digits twice that
HALF_MARK = 1.6  # points
RADII = (4.2, 6, 8, 10.5, 13, 16, 20)  # points from a mark to the middle of its number, nearest first
ANGLES = (45, -45, 135, -135, 0, 180, 90, -90, 22, 68, 112, 158, -22, -68, -112, -158)
LINE_FROM = 7.0  # points; farther away, a thin line leads to the mark

Box = tuple[float, float, float, float]  # left, bottom, right, top


def number_heads(figure: Figure, centres: dict[Axes, np.ndarray]) -> list[Annotation]:
    """Writes each head's number beside its mark, in its colour; marks outside the axes get none.

    Args:
      figure: with everything else drawn in it.
      centres: for each axes, the marks `(h, 2)` in pixels, row first.
    """
    figure.draw_without_rendering()  # only now is it known where pixels lie on paper
    return [note for axes, marks in centres.items() for note in _number(axes, marks)]


def _number(axes: Axes, centres: np.ndarray) -> Iterator[Annotation]:
    scale = 72 / axes.figure.dpi
    marks = axes.transData.transform(np.asarray(centres)[:, ::-1]) * scale
    left, bottom, right, top = np.asarray(axes.bbox.extents) * scale
    frame = left, bottom, right, top
    inside = [head for head, mark in enumerate(marks) if _covers(frame, (*mark, *mark))]
    taken = [(x - HALF_MARK, y - HALF_MARK, x + HALF_MARK, y + HALF_MARK) for x, y in marks[inside]]
    taken += _query_outline(axes, scale)
    for head in inside:
        offset, box = _free_place(marks[head], HALF_WIDTH * len(str(head + 1)), taken, frame)
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


def _query_outline(axes: Axes, scale: float) -> list[Box]:
    """Returns the four sides of the query pixel, which stands at shift zero."""
    corners = axes.transData.transform([(-0.5, -0.5), (0.5, 0.5)]) * scale
    (left, bottom), (right, top) = corners.min(axis=0), corners.max(axis=0)
    return [
        (left, bottom, left, top),
        (right, bottom, right, top),
        (left, bottom, right, bottom),
        (left, top, right, top),
    ]


def _free_place(mark: np.ndarray, half_width: float, taken: list[Box], frame: Box) -> tuple[np.ndarray, Box]:
    """Returns the nearest offset in points at which a number covers nothing, or least, and the box it fills."""
    places = []
    for radius in RADII:
        for angle in np.radians(ANGLES):
            offset = radius * np.array([np.cos(angle), np.sin(angle)])
            x, y = mark + offset
            box = (x - half_width, y - HALF_HEIGHT, x + half_width, y + HALF_HEIGHT)
            covered = sum(_overlap(box, other) for other in taken)
            if covered == 0 and _covers(frame, box):
                return offset, box
            places.append((covered + (0 if _covers(frame, box) else 100), len(places), offset, box))
    return min(places)[2:]


def _covers(frame: Box, box: Box) -> bool:
    return bool(frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3])


def _overlap(a: Box, b: Box) -> float:
    """Returns the area that two boxes share, each half a point larger on all sides."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]) + 1, min(a[3], b[3]) - max(a[1], b[1]) + 1
    return max(0.0, width) * max(0.0, height)
