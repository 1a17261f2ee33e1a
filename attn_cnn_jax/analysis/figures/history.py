"""Layers over training: how far they look, how near they are to a convolution."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.history import History

PANELS = {
    "distance": "mean distance (pixels)",
    "within": "attention within 3x3 (%)",
    "entropy": "entropy (nats)",
    "residual": "residual of Lemma 3",
}


def draw(history: History, title: str) -> Figure:
    """Returns four panels over the epochs, a line per layer: the first layer dark, the last light."""
    with style.styled():
        figure = style.create_figure(style.PAGE, 1.9)
        figure.suptitle(title, fontsize=7)
        colours, lines = style.layer_colours(history.distance.shape[1]), []
        for axes, (name, label) in zip(figure.subplots(1, 4), PANELS.items(), strict=True):
            values = getattr(history, name).T * (100 if name == "within" else 1)
            lines = [
                axes.plot(history.epochs, of_layer, color=colour, linewidth=1, gid=f"{name} {n}")[0]
                for n, (of_layer, colour) in enumerate(zip(values, colours, strict=True), start=1)
            ]
            axes.set(title=label, xlabel="epoch")
            axes.set_ylim(0, 1.05 * values.max() or 1)
            style.decorate(axes)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        names = [f"layer {n}" for n in range(1, len(lines) + 1)]
        figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 8), frameon=False)
    return figure
