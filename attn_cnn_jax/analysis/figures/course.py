"""Layers over training: how far their heads look, and how near each is to a 3x3 convolution."""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.course import Course
from attn_cnn_jax.analysis.figures import style

PANELS = {
    "distance": "mean distance (pixels)",
    "within": "attention within 3x3 (%)",
    "entropy": "entropy (nats)",
    "residual": "residual of Lemma 3, 3x3",
}


def draw(course: Course, title: str) -> Figure:
    """Returns four panels over the epochs, a line per layer: the first layer dark, the last light.

    Args:
      course: of a run.
      title: of the figure.
    """
    with style.styled():
        figure = style.create_figure(style.PAGE, 1.9)
        figure.suptitle(title, fontsize=7)
        num_layers = course.distance.shape[1]
        colours = matplotlib.colormaps["viridis"]([0.85 * n / max(1, num_layers - 1) for n in range(num_layers)])
        lines = []
        for axes, (name, label) in zip(figure.subplots(1, 4), PANELS.items(), strict=True):
            values = getattr(course, name) * (100 if name == "within" else 1)
            lines = [
                axes.plot(course.epochs, values[:, n], color=colours[n], linewidth=1, gid=f"{name} {n + 1}")[0]
                for n in range(num_layers)
            ]
            axes.set(title=label, xlabel="epoch")
            axes.set_ylim(bottom=0)
            axes.grid(color="0.9", linewidth=0.4)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        names = [f"layer {n + 1}" for n in range(num_layers)]
        figure.legend(lines, names, loc="outside lower center", ncols=min(num_layers, 8), frameon=False)
    return figure
