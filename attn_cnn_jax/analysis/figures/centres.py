"""Where heads look: their centres, with contours of their attention, in every layer (Fig. 4, 12 to 14)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import interpolate, ndimage

from attn_cnn_jax.analysis import test_images
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.labels import number_heads
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.runs.run import Run

SHARES = {0.5: 1.0, 0.9: 0.5}  # of the attention inside a contour: width of its line, in points
MOST_PIECES = 2  # a contour of more closed lines than this cannot be read; content scatters attention so
FINENESS = 32  # points of a density along a pixel's side
RISE = 1.0  # nats at most above a pixel and its neighbours, where rough attention is carried to the border
FLOOR = -16.0  # nats below the largest probability: what is less likely does not show


def draw_run(run: Run, layers: list[np.ndarray]) -> Figure:
    """Returns where all heads of a run look from the central query pixel; `layers` as `mean_attention` gives."""
    query, blocks = test_images.centre(run), run.model.blocks
    centres = [layer_centres(block.attention, layer, query) for block, layer in zip(blocks, layers, strict=True)]
    return draw(layers, centres, query)


def draw(layers: list[np.ndarray], centres: list[np.ndarray], query: tuple[int, int]) -> Figure:
    """Returns centres of all heads of all layers, with contours that hold 50% and 90% of the attention (Fig. 4).

    Each layer has probabilities `(h, i, j, k, l)` and centres `(h, 2)`, shifts from the query in pixels, row first.
    """
    height, width = layers[0].shape[-2:]
    with style.styled():
        figure, panels = style.shift_panels(len(layers), 3, height / width)
        any_scattered = False
        for n, (axes, layer, marks) in enumerate(zip(panels, layers, centres, strict=True)):
            axes.set(
                xlim=(-0.5 - query[1], width - 0.5 - query[1]),
                ylim=(height - 0.5 - query[0], -0.5 - query[0]),
                aspect="equal",
                title=f"layer {n + 1}",
            )
            maps = layer[:, query[0], query[1]]
            scattered = [head for head, attention in enumerate(maps) if not draw_contours(axes, attention, query, head)]
            mark_centres(axes, marks)
            if scattered:
                any_scattered = True
                axes.set_title(f"{axes.get_title()}, scattered: {style.numbers(scattered, len(maps))}")
            style.mark_query(axes)
        handles = [Line2D([], [], color="0.2", linewidth=width) for width in SHARES.values()]
        texts = [f"holds {share:.0%} of a head's attention" for share in SHARES]
        if any_scattered:
            handles.append(Line2D([], [], linestyle=""))
            texts.append(f"scattered: no contours, they would fall into more than {MOST_PIECES} pieces")
        ncols = 2 if len(layers) >= 3 else 1
        figure.legend(handles, texts, loc="outside upper center", ncols=ncols, frameon=False)
        number_heads(figure, dict(zip(panels, centres, strict=True)))
    return figure


def draw_contours(axes: Axes, probabilities: np.ndarray, query: tuple[int, int], head: int) -> bool:
    """Draws the contours of one head's attention `(k, l)` around the query pixel; none for uniform attention.

    Returns:
      Whether they can be read; where they cannot, nothing is drawn.
    """
    rows, columns, of_pixel = density(probabilities)
    levels = {share: found for share in SHARES if (found := level(of_pixel, share)) is not None}
    if any(pieces(of_pixel, value) > MOST_PIECES for value in levels.values()):
        return False
    look = style.look(head)
    for share, value in levels.items():
        at = columns - query[1], rows - query[0]
        lines = axes.contour(*at, of_pixel, [value], linewidths=SHARES[share], colors=look.colour, linestyles=look.line)
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

    The parameters where these are the attention (quadratic without content), which may be outside the image; else the
    centre of mass of the query pixel's attention.
    """
    if isinstance(attention.position, CentredEncoding) and not attention.depends_on_content:
        return np.asarray(attention.position.centre[...], np.float64)
    return moments.centre_of_mass(probabilities[:, query[0], query[1]]) - query


def density(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns attention `(k, l)` of one query pixel as a smooth density on the image.

    Akima's cubics through the logarithms at the pixels' centres: exact for a Gaussian, also in the half pixel towards
    the border, and local, so that rough attention elsewhere does not ring. Zero outside the image, so that contours
    close along its border.

    Returns rows `(m,)` and columns `(n,)` in pixels (a pixel's centre at its index), and the density `(m, n)`, per
    square pixel, with a border of zeros.
    """
    probabilities = moments.normalised(probabilities)
    logs = np.log(np.maximum(probabilities / probabilities.max(), np.exp(FLOOR)))
    highest = ndimage.maximum_filter(logs, 3) + RISE
    edges = []
    for axis, size in enumerate(probabilities.shape):
        points = (np.arange(size * FINENESS) + 0.5) / FINENESS - 0.5
        if size > 1:
            logs = interpolate.Akima1DInterpolator(np.arange(size), logs, axis=axis, extrapolate=True)(points)
        else:
            logs = np.repeat(logs, FINENESS, axis=axis)
        edges.append(np.concatenate([[-0.5], points, [size - 0.5]]))
    logs = np.minimum(logs, np.kron(highest, np.ones((FINENESS, FINENESS))))
    values = np.exp(logs - logs.max())
    values *= FINENESS**2 / values.sum()
    return *edges, np.pad(values, 1)


def level(density: np.ndarray, share: float) -> float | None:
    """Returns the density above which is this share of the mass; None where attention is uniform."""
    values = np.sort(density[1:-1, 1:-1], axis=None)[::-1]
    if values[0] - values[-1] <= style.FLAT * values[0]:
        return None
    mass = np.cumsum(values)
    return float(np.interp(share, mass / mass[-1], values))


def pieces(density: np.ndarray, level: float) -> int:
    """Returns how many closed lines separate what is above a density from the rest: its regions and their holes.

    What is smaller than a quarter of a pixel does not count.
    """
    count = -1  # around the image all is below
    for inside in (density > level, density <= level):
        labels, _ = ndimage.label(inside)  # pyright: ignore[reportGeneralTypeIssues]
        count += int(np.sum(np.bincount(labels.ravel())[1:] >= FINENESS**2 / 4))
    return count
