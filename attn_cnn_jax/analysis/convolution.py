"""Measures how convolutional a network is: its attention layers replaced by their KxK convolutions.

A convolution's weights are a head's attention on each shift at interior queries, those whose KxK window lies
inside the picture (theorem/to_convolution.py). Three substitutes are compared: "zeros" beyond the border, "edge"
pixels repeated there, and "truncated": no convolution, but every query's own attention inside its window.
Where attention depends on content, its mean over test pictures takes its place.
"""

from pathlib import Path

import jax.numpy as jnp
import matplotlib
from matplotlib.figure import Figure

from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.replacement import SUBSTITUTES, Result, accuracy, measure
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.runs.run import Run

TEST_IMAGES = 1000
IN_WORDS = {
    "zeros": "zeros beyond the border",
    "edge": "edge pixels repeated",
    "truncated": "own attention, truncated",
}


def measure_run(
    run: Run,
    kernel_sizes: tuple[int, ...],
    *,
    num_images: int | None = None,
    test_images: int | None = None,
    data_dir: str | Path | None = None,
) -> tuple[float, list[Result]]:
    """Returns the test accuracy of a run's network, and what each kernel size makes of it.

    Args:
      num_images: test pictures over which content-dependent attention is averaged; None for `pictures.AVERAGED`.
      test_images: test pictures on which accuracy is measured.
      data_dir: where the data set lies, if not where the run had it.

    Raises:
      UserError: for a network without attention, or data that is not there.
    """
    if not isinstance(run.model, AttentionClassifier):
        raise UserError(f"a {run.config.model.name} has no attention to turn into convolutions: give an attention run")
    if test_images is None:
        test_images = min(TEST_IMAGES, len(pictures.dataset_of(run.config, data_dir).test.labels))
    images, labels = pictures.first_pictures(run, test_images, data_dir)
    images = run.normalised(images)
    attention = [jnp.asarray(layer, jnp.float32) for layer in pictures.mean_attention(run, num_images, data_dir)]
    results = [measure(run.model, attention, kernel_size, images, labels) for kernel_size in kernel_sizes]
    return accuracy(run.model, images, labels), results


def draw(original: float, results: list[Result]) -> Figure:
    """Returns four panels over K: accuracy with all and with the first n layers replaced, error, mass inside."""
    kernel_sizes = [r.kernel_size for r in results]
    num_layers = len(results[0].error)
    shades = matplotlib.colormaps["viridis"]
    colours = [shades(0.9 * n / max(1, num_layers - 1)) for n in range(num_layers)]
    with style.styled():
        figure = style.create_figure(style.PAGE, 4.2)
        (whole, first), (error, inside) = figure.subplots(2, 2)
        for n, kind in enumerate(SUBSTITUTES):
            look = style.look(n)
            values = [100 * r.accuracy[kind][-1] for r in results]
            line = {"color": look.colour, "marker": "o", "markersize": 2.5, "linewidth": 1}
            whole.plot(kernel_sizes, values, **line, label=IN_WORDS[kind], gid=kind)
        for axes in (whole, first):
            axes.axhline(100 * original, color="0.4", linestyle="--", linewidth=0.8, label="the network itself")
        for n, colour in enumerate(colours):
            line = {"color": colour, "marker": "o", "markersize": 2.5, "linewidth": 1}
            values = [100 * r.accuracy["zeros"][n] for r in results]
            first.plot(kernel_sizes, values, **line, label="layer 1" if n == 0 else f"layers 1 to {n + 1}")
            error.plot(kernel_sizes, [r.error[n].everywhere for r in results], **line, linestyle="--")
            error.plot(kernel_sizes, [r.error[n].interior for r in results], **line, label=f"layer {n + 1}")
            inside.plot(kernel_sizes, [100 * r.mass_inside[n].mean() for r in results], **line, label=f"layer {n + 1}")
        whole.set(title="all layers replaced by KxK convolutions", ylabel="test accuracy (%)")
        first.set(title="first layers replaced, zeros beyond the border", ylabel="test accuracy (%)")
        error.set(title="output error: all pixels dashed, interior solid", ylabel="relative error")
        inside.set(title="attention inside the kernel, mean over heads", ylabel="attention (%)")
        for axes in (whole, first, error, inside):
            axes.set_xlabel("kernel size K (pixels)")
            axes.set_xticks(kernel_sizes)  # the sizes measured, odd by default
            axes.set_ylim(bottom=0)
            style.decorate(axes)
            axes.legend(frameon=False)
    return figure
