"""Measure how convolutional a run is: its attention layers replaced by their KxK convolutions.

Prints a table and writes it as convolution.csv, and a figure as convolution.png and .svg. A convolution's weights are a
head's attention on each shift at interior queries, those whose KxK window lies inside the image. A line has, for a
kernel size K, the accuracy with the first n layers replaced by each of three substitutes ("zeros" beyond the border,
"edge" pixels repeated there, and "truncated": no convolution, but every query's own attention inside its window), and
of layer n alone the relative error of its convolution's output, over all pixels and over interior ones, and the share
of attention inside the kernel at interior queries, the mean over heads and the least. Where attention depends on
content, its mean over test images takes its place.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from attn_cnn_jax.analysis import SUBSTITUTES, TEST_IMAGES
from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one, beside, matching, numbers_in
from attn_cnn_jax.data.image_files import drawings
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.output import columns, csv_text, say

if TYPE_CHECKING:
    import numpy as np

    from attn_cnn_jax.analysis.convolution import Result
    from attn_cnn_jax.runs.run import Run

EXAMPLE = "runs/digits --kernel-sizes=3,7 --out=convolution"
COLUMNS = {
    "K": "{kernel_size}",
    "first n layers": "{layer}",
    **{kind: f"{{accuracy_{kind}:.2%}}" for kind in SUBSTITUTES},
    "error of layer n": "{error_everywhere:.3f}",
    "interior": "{error_interior:.3f}",
    "attention inside": "{mass_inside_mean:.1%}",
    "least": "{mass_inside_least:.1%}",
}

sizes = matching(r"\d*[13579](,\d*[13579])*", lambda text: sorted({*numbers_in(text)}), "an odd integer, or several")


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--data-dir", "--images")
    which = "sizes K to measure (1,3,5,7,9)"
    parser.add_argument("--kernel-sizes", type=sizes, default=[1, 3, 5, 7, 9], metavar="K,...", help=which)
    parser.add_argument("--out", type=as_path, metavar="DIR", help="where to write; RUN/convolution by default")
    which = f"test images to measure accuracy on ({TEST_IMAGES}, or all where there are fewer)"
    parser.add_argument("--test-images", type=at_least_one, metavar="N", help=which)


def run(args: argparse.Namespace) -> None:
    from attn_cnn_jax.analysis.convolution import measure_run
    from attn_cnn_jax.analysis.test_images import averaged_over
    from attn_cnn_jax.runs.load import load_run

    run = load_run(args.run, args.step)
    labelled = without_data(run, args)
    num_images = averaged_over(run, args.images, args.data_dir)
    images = {"num_images": num_images, "test_images": args.test_images, "labelled": labelled}
    original, results = measure_run(run, tuple(args.kernel_sizes), data_dir=args.data_dir, **images)
    of = f"accuracy on {len(labelled[1])} drawings" if labelled else "test accuracy"
    say(f"step {run.step}: {of} {original:.2%}; with the first n layers replaced by KxK convolutions:")
    if run.model.depends_on_content:
        say(f"Its attention depends on content: the mean over {num_images} test images takes its place.")
    records = rows(original, results)
    say(columns(records, COLUMNS, left=0))
    if not labelled:
        from attn_cnn_jax.analysis.figures import style
        from attn_cnn_jax.analysis.figures.convolution import draw

        out = args.out or beside(args.run, "convolution")
        paths = [*style.save(draw(original, results), out, "convolution"), out / "convolution.csv"]
        write_atomically(paths[-1], csv_text(records))
        say("\n".join(map(str, ["", *paths])))


def without_data(run: "Run", args: argparse.Namespace) -> "tuple[np.ndarray, np.ndarray] | None":
    """Where the data set is not there, the drawings of this package and their classes, which prints why; else None.

    UserError where there are no drawings for the network, or its attention has to be averaged over test images.
    """
    import numpy as np

    from attn_cnn_jax.analysis.test_images import dataset_of, reads_images

    try:
        dataset_of(run, args.data_dir)
    except UserError as error:
        images = drawings(run.class_names, tuple(run.config.model.image_shape))
        if reads_images(run) or not images:
            raise
        say(f"{error}\nMeasured on {len(images)} drawings, not on test images; no file is written.", sys.stderr)
        return np.stack([image.pixels for image in images]), np.array([run.class_names.index(i.label) for i in images])
    return None


def rows(original: float, results: "list[Result]") -> list[dict]:
    """Returns a row per kernel size and layer; the accuracies are those with the layers up to this one replaced."""
    return [
        {"kernel_size": r.kernel_size, "layer": n + 1}
        | {f"accuracy_{kind}": float(r.accuracy[kind][n]) for kind in SUBSTITUTES}
        | {"accuracy_original": float(original)}
        | {"error_everywhere": float(error.everywhere), "error_interior": float(error.interior)}
        | {"mass_inside_mean": float(inside.mean()), "mass_inside_least": float(inside.min())}
        for r in results
        for n, (error, inside) in enumerate(zip(r.error, r.mass_inside, strict=True))
    ]
