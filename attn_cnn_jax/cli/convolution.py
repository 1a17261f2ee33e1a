"""Measure how convolutional a run is: its attention layers replaced by their KxK convolutions.

Prints tables and writes them as convolution.csv, and a figure as convolution.png and .svg: test accuracy with
the first n layers replaced, the error of every layer's output, and the share of attention inside the kernel.
A convolution's weights are a head's attention on each shift at interior queries, those whose KxK window lies
inside the image. Three substitutes are compared: "zeros" beyond the border, "edge" pixels repeated there, and
"truncated": no convolution, but every query's own attention inside its window. Where attention depends on
content, its mean over test images takes its place.
"""

import argparse
import csv
import io
import sys
from collections.abc import Sequence

import numpy as np
from tabulate import tabulate

from attn_cnn_jax.analysis.convolution import SUBSTITUTES, TEST_IMAGES, Result, draw, measure_run
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.images import AVERAGED, averaged_over, dataset_of, reads_images
from attn_cnn_jax.cli.arguments import add_images, add_run, as_path, at_least_one, beside
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.output import say
from attn_cnn_jax.page.images import drawings
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.run import Run

EXAMPLE = "runs/digits --kernel-sizes=3,7 --out=convolution"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--kernel-sizes", type=sizes, default=(1, 3, 5, 7, 9), metavar="K,...", help="sizes K to measure (1,3,5,7,9)"
    )
    parser.add_argument("--out", type=as_path, metavar="DIR", help="where to write; RUN/convolution by default")
    add_images(parser, AVERAGED)
    parser.add_argument(
        "--test-images",
        type=at_least_one,
        help=f"test images to measure accuracy on ({TEST_IMAGES}, or all where there are fewer)",
    )


def sizes(text: str) -> tuple[int, ...]:
    """Returns positive integers with commas between them, in increasing order."""
    return tuple(sorted({at_least_one(part) for part in text.split(",")}))


def run(args: argparse.Namespace) -> int:
    run = load_run(args.run, args.step)
    labelled = without_data(run, args)
    num_images = averaged_over(run, args.images, args.data_dir)
    original, results = measure_run(
        run,
        args.kernel_sizes,
        num_images=num_images,
        test_images=args.test_images,
        data_dir=args.data_dir,
        labelled=labelled,
    )
    of = f"accuracy on {len(labelled[1])} drawings" if labelled else "test accuracy"
    say(to_text(run, original, results, num_images, of))
    if labelled:
        return 0
    out = args.out or beside(args.run, "convolution")
    paths = style.save(draw(original, results), out, "convolution")
    write_atomically(out / "convolution.csv", to_csv(original, results))
    say("\n".join(map(str, ["", *paths, out / "convolution.csv"])))
    return 0


def without_data(run: Run, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray] | None:
    """Where the data set is not there, the drawings of this package and their classes, which prints why; else None.

    Raises:
      UserError: if there are no drawings for the network, or its attention has to be averaged over test images.
    """
    try:
        dataset_of(run.config, args.data_dir)
        return None
    except UserError as error:
        images = drawings(run.class_names, tuple(run.config.model.image_shape))
        if reads_images(run) or not images:
            raise
        say(f"{error}\nMeasured on {len(images)} drawings, not on test images; no file is written.", sys.stderr)
    return np.stack([image.pixels for image in images]), np.array([run.class_names.index(i.label) for i in images])


def to_text(run: Run, original: float, results: list[Result], num_images: int, of: str = "test accuracy") -> str:
    """Returns the tables for a terminal; `of` says what the accuracy is measured on."""
    parts = [f"step {run.step}: {of} {original:.2%}"]
    if run.model.depends_on_content:
        parts.append(f"Its attention depends on content: the mean over {num_images} test images takes its place.")
    first = {
        (SUBSTITUTES[kind], r.kernel_size): [f"{value:.2%}" for value in r.accuracy[kind]]
        for kind in SUBSTITUTES
        for r in results
    }
    error = {(r.kernel_size,): [f"{e.everywhere:.3f} / {e.interior:.3f}" for e in r.error] for r in results}
    inside = {(r.kernel_size,): [f"{m.mean():.1%} / {m.min():.1%}" for m in r.mass_inside] for r in results}
    numbers = range(1, len(results[0].error) + 1)
    layers = [f"layer {n}" for n in numbers]
    return "\n".join(
        [
            *parts,
            f"\n{of[0].upper()}{of[1:]} with the first n layers replaced",
            to_table(["substitute", "K", *(f"n={n}" for n in numbers)], first),
            "\nOutput error of a layer's convolution, zeros beyond the border: all pixels / interior pixels",
            to_table(["K", *layers], error),
            "\nAttention inside the kernel, interior queries: mean over heads / least of any head",
            to_table(["K", *layers], inside),
        ]
    )


def to_table(headers: Sequence[str], rows: dict[tuple, list[str]]) -> str:
    """Returns a table of rows by what stands in their first columns; numbers to the right."""
    align = ["left" if name == "substitute" else "right" for name in headers]
    cells = [[*first, *values] for first, values in rows.items()]
    return tabulate(cells, headers, tablefmt="plain", disable_numparse=True, colalign=align)


def to_csv(original: float, results: list[Result]) -> str:
    """Returns one line per kernel size and layer; the accuracies are those with the layers up to this one replaced."""
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
