"""Attention learning a convolution: the error over training, and where the heads end."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.centres import mark_centres
from attn_cnn_jax.analysis.figures.labels import number_heads
from attn_cnn_jax.analysis.figures.training import draw_paths

REACH = 3.5  # pixels from the query that are shown


def draw(trainings: list[dict]) -> Figure:
    """Returns the errors of all trainings over their steps, and one panel of centres per number of heads.

    Args:
      trainings: with `heads`, `seed`, `final_error`, and over training `step` and `error`, `(n,)`, `centre`,
        `(n, h, 2)`. Centres are those of the first seed of each number of heads.
    """
    counts = sorted({training["heads"] for training in trainings})
    with style.styled():
        figure = style.create_figure(7.0, 2.5)
        errors, *panels = figure.subplots(1, 1 + len(counts), width_ratios=(1.25, *[1] * len(counts)))
        for training in trainings:
            n = counts.index(training["heads"])
            label = f"{training['heads']} heads" if training["seed"] == min(t["seed"] for t in trainings) else None
            errors.semilogy(training["step"], training["error"], color=style.look(n).colour, linewidth=0.8, label=label)
        errors.set(xlabel="step", ylabel="relative error", title="error, every seed")
        errors.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        style.decorate(errors)
        errors.legend(frameon=False)
        last = {}
        for axes, count in zip(panels, counts, strict=True):
            training = next(training for training in trainings if training["heads"] == count)
            centres = np.asarray(training["centre"])
            axes.set(xlim=(-REACH, REACH), ylim=(REACH, -REACH), aspect="equal")
            axes.set(title=f"{count} heads: {100 * training['final_error']:.2g}%", xlabel="columns from the query")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MultipleLocator(1))
            axes.grid(color="0.9", linewidth=0.4)
            axes.set_axisbelow(True)
            draw_paths(axes, centres)
            mark_centres(axes, centres[-1])
            style.mark_query(axes)
            last[axes] = centres[-1]
        panels[0].set_ylabel("rows from the query")
        number_heads(figure, last)
    return figure
