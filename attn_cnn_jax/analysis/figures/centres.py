"""Where heads look: centres over training (Fig. 3), and centres with contours of all layers (Fig. 4)."""

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.analysis.figures import contours, style
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.runs.load import Run

SHARES = (0.9, 0.5)  # of the attention inside the outer and the inner contour
FRAMES = 100  # of an animation at most
RANGE = 0.5  # pixels beyond the outermost centre


def draw_run(run: Run, layers: list[np.ndarray]) -> Figure:
    """Where all heads look from the central query pixel, with contours that hold 50% and 90% (Fig. 4, 12 to 14).

    Args:
      run: the run.
      layers: one `(h, i, j, k, l)` a layer, as `pictures.mean_attention` gives them.
    """
    query = pictures.centre(run)
    blocks = run.model.blocks
    found = [layer_centres(block.attention, layer, query) for block, layer in zip(blocks, layers, strict=True)]
    return draw_layers(layers, found, query)


def draw_layers(layers: list[np.ndarray], centres: list[np.ndarray], query: tuple[int, int]) -> Figure:
    """Centres of all heads of all layers, with contours that hold 50% and 90% of the attention (Fig. 4).

    Args:
      layers: one `(h, i, j, k, l)` array of probabilities a layer.
      centres: one `(h, 2)` array of shifts a layer, pixels, row first.
      query: the query pixel.
    """
    height, width = layers[0].shape[-2:]
    with style.styled():
        columns = min(3, len(layers))
        rows = -(-len(layers) // columns)
        panel = (style.PAGE - 0.5) / 3
        figure = style.create_figure(0.5 + panel * columns, rows * (panel * height / width + 0.17) + 0.3)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for n, axes in enumerate(panels.flat):
            if n >= len(layers):
                axes.set_axis_off()
                continue
            for head, probabilities in enumerate(layers[n][:, query[0], query[1]]):
                draw_contours(axes, probabilities, query, head)
            axes.set(
                xlim=(-0.5 - query[1], width - 0.5 - query[1]),
                ylim=(height - 0.5 - query[0], -0.5 - query[0]),
                aspect="equal",
                title=f"layer {n + 1}",
            )
            draw_centres(axes, centres[n])
            style.mark_query(axes)
        figure.supxlabel("columns from the query pixel", fontsize=7)
        figure.supylabel("rows from the query pixel", fontsize=7)
    return figure


def draw_contours(axes: Axes, probabilities: np.ndarray, query: tuple[int, int], head: int) -> None:
    """Contours of one head's attention `(k, l)` around the query pixel; none for uniform attention."""
    rows, columns, density = contours.density(probabilities)
    look = style.look(head)
    for share, width in zip(SHARES, (0.5, 1.0), strict=True):
        level = contours.level(density, share)
        if level is not None:
            lines = axes.contour(
                columns - query[1],
                rows - query[0],
                density,
                [level],
                colors=look.colour,
                linewidths=width,
                linestyles=look.line,
            )
            lines.set_gid(f"head {head} {share:.0%}")


def draw_centres(axes: Axes, centres: np.ndarray) -> None:
    """A numbered mark at every centre `(h, 2)`; those outside the axes are named in the title."""
    left, right = sorted(axes.get_xlim())
    top, bottom = sorted(axes.get_ylim())
    outside = []
    for head, (row, column) in enumerate(centres):
        look = style.look(head)
        axes.plot(column, row, look.marker, color=look.colour, markersize=3, markeredgewidth=0, gid=f"centre {head}")
        if left <= column <= right and top <= row <= bottom:
            label(axes, row, column, head)
        else:
            outside.append(str(head + 1))
    if outside:
        axes.set_title(f"{axes.get_title()}, outside: {', '.join(outside)}")


def label(axes: Axes, row: float, column: float, head: int):
    """A head's number beside its centre."""
    return axes.annotate(
        str(head + 1),
        (column, row),
        xytext=(2, 2),
        textcoords="offset points",
        fontsize=5,
        color=style.look(head).colour,
        annotation_clip=True,
        path_effects=[patheffects.withStroke(linewidth=1.2, foreground="white")],
        zorder=6,
    )


def layer_centres(attention: SelfAttention, probabilities: np.ndarray, query: tuple[int, int]) -> np.ndarray:
    """Centres of a layer's heads relative to the query pixel, `(h, 2)` pixels.

    The parameters where these are the attention (quadratic without content), which need not lie in the
    picture; else the centre of mass of the query pixel's attention.
    """
    centres = attention.position.centres()
    if centres is not None and not attention.depends_on_content:
        return centres
    return moments.centre_of_mass(probabilities[:, query[0], query[1]]) - query


def draw_training(records: list[dict], layer: int, epochs: list[float] | None = None) -> Figure:
    """Centres of one layer's heads at several epochs, as panels (Fig. 3).

    Args:
      records: of positions.jsonl, see training/positions.py.
      layer: from 0.
      epochs: which to show; None chooses up to eight, from the first to the last.
    """
    chosen = choose(records, epochs, 8)
    with style.styled():
        columns = min(4, len(chosen))
        rows = -(-len(chosen) // columns)
        panel = (style.PAGE - 0.5) / 4
        figure = style.create_figure(0.5 + panel * columns, rows * (panel + 0.17) + 0.3)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        reach = extent(records, layer)
        for n, axes in enumerate(panels.flat):
            if n >= len(chosen):
                axes.set_axis_off()
                continue
            draw_epoch(axes, chosen[n], layer, reach)
        figure.supxlabel("columns from the query pixel", fontsize=7)
        figure.supylabel("rows from the query pixel", fontsize=7)
    return figure


def draw_epoch(axes: Axes, record: dict, layer: int, reach: float) -> None:
    """One panel: centres at one epoch, circles or ellipses of one standard deviation around them."""
    axes.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal", title=f"epoch {record['epoch']:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10), integer=True))
    positions = record["layers"][layer]
    for head, covariance in enumerate(covariances(positions)):
        if np.all(np.isfinite(covariance)):
            deviations, (row, column) = moments.main_axes(covariance)
            angle = np.degrees(np.arctan2(row, column))
            look = style.look(head)
            axes.add_patch(
                Ellipse(
                    positions["centre"][head][::-1],
                    *(2 * deviations),
                    angle=angle,
                    fill=False,
                    edgecolor=look.colour,
                    linestyle=look.line,
                    linewidth=0.5,
                    gid=f"deviation {head}",
                )
            )
    draw_centres(axes, np.array(positions["centre"]))
    style.mark_query(axes)


def animate_training(records: list[dict], layer: int) -> list[np.ndarray]:
    """Frames `(height, width, 3)` of one layer's centres over training, with the way they came."""
    frames = []
    chosen = choose(records, None, FRAMES)
    reach = extent(records, layer)
    for n, record in enumerate(chosen):
        with style.styled():
            figure = style.create_figure(style.COLUMN, style.COLUMN)
            axes = figure.subplots()
            draw_epoch(axes, record, layer, reach)
            paths = np.array([earlier["layers"][layer]["centre"] for earlier in chosen[: n + 1]])
            for head, path in enumerate(paths.swapaxes(0, 1)):
                axes.plot(path[:, 1], path[:, 0], "-", color=style.look(head).colour, linewidth=0.4, alpha=0.6)
            axes.set(
                xlabel="columns from the query pixel",
                ylabel="rows from the query pixel",
                title=f"layer {layer + 1}, {axes.get_title()}",
            )
            frames.append(style.pixels(figure))
    return frames


def covariances(positions: dict) -> np.ndarray:
    """Covariances `(h, 2, 2)` of a layer's recorded positions; infinite where a spread is singular."""
    if "covariance" in positions:
        return np.array(positions["covariance"])
    return moments.covariance_of_spread(np.array(positions["spread"]))


def extent(records: list[dict], layer: int) -> float:
    """Half the side of the square that holds the centres of nearly all heads at all epochs, pixels."""
    centres = np.abs([record["layers"][layer]["centre"] for record in records]).max(axis=-1)
    return float(max(1.5, np.quantile(centres, 0.98))) + RANGE


def choose(records: list[dict], epochs: list[float] | None, most: int) -> list[dict]:
    """The records of some epochs; by default at most `most`, evenly from the first to the last."""
    if epochs is None:
        chosen = np.unique(np.linspace(0, len(records) - 1, min(most, len(records))).round().astype(int))
        return [records[n] for n in chosen]
    by_epoch = {record["epoch"]: record for record in records}
    missing = [epoch for epoch in epochs if epoch not in by_epoch]
    if missing:
        raise UserError(
            f"no positions were recorded at epoch {', '.join(f'{epoch:g}' for epoch in missing)}; "
            f"they were from {min(by_epoch):g} to {max(by_epoch):g}"
        )
    return [by_epoch[epoch] for epoch in epochs]
