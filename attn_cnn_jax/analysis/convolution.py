"""How convolutional is what a network learned? Its attention layers replaced by their KxK convolutions.

    python -m attn_cnn_jax.analysis.convolution RUN [--kernel_sizes=1,3,5,7,9] [--out=DIR]

Prints tables and writes them as convolution.csv, and a figure as convolution.png and .svg: test accuracy with
the first n layers replaced, the error of every layer's output, and the share of attention inside the kernel.
A convolution's weights are a head's attention on each shift at interior queries, those whose KxK window lies
inside the picture (attention_to_conv.py). Three substitutes are compared: "zeros" beyond the border, "edge"
pixels repeated there, and "truncated": no convolution, but every query's own attention inside its window.
Where attention depends on content, its mean over test pictures takes its place.
"""

import argparse
import csv
import io
import sys
from pathlib import Path

import jax.numpy as jnp
import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.replacement import SUBSTITUTES, Result, accuracy, measure
from attn_cnn_jax.cli.arguments import add_seed, at_least_one, documented_parser, step
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError, says_errors
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.load import Run, load_run

TEST_IMAGES = 1000
IN_WORDS = {
    "zeros": "zeros beyond the border",
    "edge": "edge pixels repeated",
    "truncated": "own attention, truncated",
}


@says_errors
def main(argv: list[str] | None = None) -> int:
    """The command; see the module's docstring. Exit status 0, or 1 for an error said in a line or two."""
    args = parser().parse_args(argv)
    run = load_run(args.run, args.step, args.seed)
    original, results = measure_run(
        run, args.kernel_sizes, num_images=args.images, test_images=args.test_images, data_dir=args.data_dir
    )
    print(to_text(run, original, results, args.images))
    out = args.out or args.run / "convolution"
    paths = style.save(draw(original, results), out, "convolution")
    write_atomically(out / "convolution.csv", to_csv(original, results))
    print("", *paths, out / "convolution.csv", sep="\n")
    return 0


def parser() -> argparse.ArgumentParser:
    parser = documented_parser("attn_cnn_jax.analysis.convolution", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory that train.py left")
    parser.add_argument("--kernel_sizes", type=sizes, default=(1, 3, 5, 7, 9), metavar="K,...", help="1,3,5,7,9")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; RUN/convolution by default")
    parser.add_argument("--step", type=step, default="latest", help="latest, best, or the number of a checkpoint")
    add_seed(parser)
    parser.add_argument("--images", type=at_least_one, default=100, help="test pictures that content is averaged over")
    parser.add_argument(
        "--test_images",
        type=at_least_one,
        help=f"test pictures that accuracy is measured on; {TEST_IMAGES}, or all where there are fewer",
    )
    parser.add_argument("--data_dir", help="where the data set lies, if not where the run had it")
    return parser


def sizes(text: str) -> tuple[int, ...]:
    """Positive integers with commas between them, in increasing order."""
    return tuple(sorted({at_least_one(part) for part in text.split(",")}))


def measure_run(
    run: Run,
    kernel_sizes: tuple[int, ...],
    *,
    num_images: int = 100,
    test_images: int | None = None,
    data_dir: str | Path | None = None,
) -> tuple[float, list[Result]]:
    """The test accuracy of a run's network, and what each kernel size makes of it.

    Args:
      num_images: test pictures over which content-dependent attention is averaged.
      test_images: test pictures on which accuracy is measured.
      data_dir: where the data set lies, if not where the run had it.
    """
    if run.config.model.name != "attention":
        raise UserError(f"a {run.config.model.name} has no attention to turn into convolutions: give an attention run")
    if test_images is None:
        test_images = min(TEST_IMAGES, sources.SPECS[run.config.dataset.name].test_examples)
    images, labels = pictures.first_pictures(run, test_images, data_dir)
    images = run.normalised(images)
    attention = [jnp.asarray(layer, jnp.float32) for layer in pictures.mean_attention(run, num_images, data_dir)]
    results = [measure(run.model, attention, kernel_size, images, labels) for kernel_size in kernel_sizes]
    return accuracy(run.model, images, labels), results


def to_text(run: Run, original: float, results: list[Result], num_images: int) -> str:
    """The tables that the command prints."""
    layers = range(1, len(results[0].error) + 1)
    lines = [f"step {run.step}: test accuracy {original:.2%}"]
    if run.model.depends_on_content:
        lines.append(f"Its attention depends on content: the mean over {num_images} test pictures takes its place.")
    lines += ["", "Test accuracy with the first n layers replaced", table_row("K", [f"n={n}" for n in layers])]
    for kind in SUBSTITUTES:
        lines.append(IN_WORDS[kind])
        lines += [table_row(r.kernel_size, [f"{value:.2%}" for value in r.accuracy[kind]]) for r in results]
    lines += ["", "Output error of a layer's convolution, zeros beyond the border: all pixels / interior pixels"]
    lines.append(table_row("K", [f"layer {n}" for n in layers]))
    for r in results:
        lines.append(table_row(r.kernel_size, [f"{e.everywhere:.3f} / {e.interior:.3f}" for e in r.error]))
    lines += ["", "Attention inside the kernel, interior queries: mean over heads / least of any head"]
    lines.append(table_row("K", [f"layer {n}" for n in layers]))
    for r in results:
        lines.append(table_row(r.kernel_size, [f"{m.mean():.1%} / {m.min():.1%}" for m in r.mass_inside]))
    return "\n".join(lines)


def table_row(first: str | int, cells: list[str]) -> str:
    return f"{first!s:>4}" + "".join(f"{cell:>17}" for cell in cells)


def to_csv(original: float, results: list[Result]) -> str:
    """One line a kernel size and layer; the accuracies are those with the layers up to this one replaced."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    accuracies = [f"accuracy_{kind}" for kind in SUBSTITUTES]
    errors = ["error_everywhere", "error_interior"]
    inside = ["mass_inside_mean", "mass_inside_least"]
    writer.writerow(["kernel_size", "layer", *accuracies, "accuracy_original", *errors, *inside])
    for r in results:
        for n, (error, inside) in enumerate(zip(r.error, r.mass_inside, strict=True)):
            values = [*(r.accuracy[kind][n] for kind in SUBSTITUTES), original, *error, inside.mean(), inside.min()]
            writer.writerow([r.kernel_size, n + 1, *(f"{value:.6g}" for value in values)])
    return file.getvalue()


def draw(original: float, results: list[Result]) -> Figure:
    """Four panels over the kernel size K: accuracy of all and of the first n layers, output error, mass inside."""
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
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylim(bottom=0)
            axes.grid(color="0.9", linewidth=0.4)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(main())
