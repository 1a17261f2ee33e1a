"""Where the queries of PaPE centre their parabolas, and how wide they are, over images: Fig. 4 as a distribution."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings.pape import Pape
from attn_cnn_jax.runs.run import Run

QUERIES = 400  # points per head in a panel, about
FLAT = 1e-8  # per square pixel: parabolas of less are as flat as a line


class Shapes(NamedTuple):
    """Of every query: the shift with the highest score, row first, and the standard deviations along the main axes.

    Lengths in pixels; of attention by the parabolas alone, on an image without borders.
    """

    centre: Float[np.ndarray, "b h H W 2"]
    widths: Float[np.ndarray, "b h H W 2"]


def shapes(encoding: Any, x: Float[np.ndarray, "b H W d"]) -> Shapes:
    """The parabolas of a layer: of `encoding`, a `Pape`, from the layer's input.

    With `Q = sum_p a_p w_p w_p^T` and `l = sum_p b_p w_p` the score of a shift `s` is `-s^T Q s - l^T s`: a Gaussian
    around `-Q^-1 l / 2` with the covariance `Q^-1 / 2`.
    """
    projections, direction = encoding.project(jnp.asarray(x)), np.asarray(encoding.direction[...], np.float64)
    width = np.asarray(projections.width, np.float64)
    tilt = np.zeros_like(width) if projections.tilt is None else np.asarray(projections.tilt, np.float64)
    quadratic = np.einsum("bhrcp,hpi,hpj->bhrcij", width, direction, direction)
    linear = np.einsum("bhrcp,hpi->bhrci", tilt, direction)
    values, axes = np.linalg.eigh(quadratic)
    values = np.maximum(values, FLAT)
    along = np.einsum("bhrcij,bhrci->bhrcj", axes, linear) / values
    return Shapes(-0.5 * np.einsum("bhrcij,bhrcj->bhrci", axes, along), (2 * values) ** -0.5)


def has(run: Run) -> bool:
    """Whether a run's network has parabolas."""
    return all(isinstance(block.attention.position, Pape) for block in run.model.blocks)


def draw(run: Run, images: UInt8[np.ndarray, "b H W c"]) -> Figure:
    """Returns by layer the centres of all heads and queries of the images, and below the distribution of widths.

    A title says how many of the centres are outside its panel.

    UserError for a network without parabolas.
    """
    if not has(run):
        raise UserError(f"the encoding {run.config.model.encoding} has no parabolas, which pape and pape_ri have")
    inputs = [layer["input"] for layer in run.intermediates(images)["layers"]]
    side = max(inputs[0].shape[1:3])
    with style.styled():
        figure = style.create_figure(style.PAGE, 3.6)
        panels = figure.subplots(2, len(inputs), squeeze=False, sharey="row")
        for n, (x, block) in enumerate(zip(inputs, run.model.blocks, strict=True)):
            parabolas = shapes(block.attention.position, x)
            outside = float((np.abs(parabolas.centre) > side).any(axis=-1).mean())
            for head in range(block.attention.num_heads):
                look, widths = style.look(head), np.sqrt(parabolas.widths[:, head].prod(axis=-1)).ravel()
                row, column = parabolas.centre[:, head].reshape(-1, 2)[:: 1 + widths.size // QUERIES].T
                line = {"color": look.colour, "gid": f"layer {n} head {head}"}
                panels[0, n].plot(column, row, look.marker, markersize=1.5, markeredgewidth=0, alpha=0.5, **line)
                shares = 100 * np.arange(1, widths.size + 1) / widths.size
                panels[1, n].plot(np.sort(widths), shares, linewidth=0.8, label=head + 1, **line)
            style.mark_query(panels[0, n])
            panels[0, n].set(
                title=f"layer {n + 1}, {outside:.0%} outside" if outside else f"layer {n + 1}",
                xlabel="columns from the query",
                xlim=(-side, side),
                aspect="equal",
            )
            panels[1, n].set(xscale="log", xlim=(0.1, 10 * side), xlabel="width (pixels)")
            style.decorate(panels[1, n])
        panels[0, 0].set(ylim=(side, -side), ylabel="rows from the query")
        panels[1, 0].set_ylabel("queries at most as wide (%)")
        place = {"loc": "outside lower center", "ncols": 9, "frameon": False}
        figure.legend(*panels[1, 0].get_legend_handles_labels(), title="head", **place)
    return figure
