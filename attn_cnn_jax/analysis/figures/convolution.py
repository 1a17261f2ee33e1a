"""What convolutions in place of attention cost, over kernel sizes."""

from matplotlib.figure import Figure

from attn_cnn_jax.analysis import SUBSTITUTES
from attn_cnn_jax.analysis.convolution import Result
from attn_cnn_jax.analysis.figures import style


def draw(original: float, results: list[Result]) -> Figure:
    """Returns four panels over K: accuracy with all and with the first n layers replaced, error, mass inside."""
    kernel_sizes = [r.kernel_size for r in results]
    line = {"marker": "o", "markersize": 2.5, "linewidth": 1}
    with style.styled():
        figure = style.create_figure(style.PAGE, 4.2)
        whole, first, error, inside = figure.subplots(2, 2).flat
        for n, (kind, label) in enumerate(SUBSTITUTES.items()):
            values = [100 * r.accuracy[kind][-1] for r in results]
            whole.plot(kernel_sizes, values, **line, color=style.look(n).colour, label=label, gid=kind)
        for axes in (whole, first):
            axes.axhline(100 * original, color="0.4", linestyle="--", linewidth=0.8, label="the network itself")
        for n, colour in enumerate(style.layer_colours(len(results[0].error))):
            look, label = line | {"color": colour}, f"layer {n + 1}"
            values = [100 * r.accuracy["zeros"][n] for r in results]
            first.plot(kernel_sizes, values, **look, label="layer 1" if n == 0 else f"layers 1 to {n + 1}")
            error.plot(kernel_sizes, [r.error[n].everywhere for r in results], **look, linestyle="--")
            error.plot(kernel_sizes, [r.error[n].interior for r in results], **look, label=label)
            inside.plot(kernel_sizes, [100 * r.mass_inside[n].mean() for r in results], **look, label=label)
        whole.set(title="all layers replaced by KxK convolutions", ylabel="test accuracy (%)")
        first.set(title="first layers replaced, zeros beyond the border", ylabel="test accuracy (%)")
        error.set(title="output error: all pixels dashed, interior solid", ylabel="relative error")
        inside.set(title="attention inside the kernel, mean over heads", ylabel="attention (%)")
        for axes in (whole, first, error, inside):
            axes.set(xlabel="kernel size K (pixels)", xticks=kernel_sizes)
            axes.set_ylim(bottom=0)
            style.decorate(axes)
            axes.legend(frameon=False)
    return figure
