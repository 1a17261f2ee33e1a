"""Draw the paper's figures of a run as PNG and SVG files.

- scheme: how one layer computes a pixel, drawn from that layer (Fig. 1)
- curves: accuracy and loss over epochs, of all runs given (Fig. 2)
- training: centres of one layer's heads over training, panels and an animated GIF (Fig. 3)
- centres: centres of all heads, contours that hold 50% and 90% of the attention (Fig. 4, 12 to 14)
- maps: attention of one query pixel, layers by heads; the mean over test images for content models (Fig. 5 to 7)
- pictures: single test images and the attention to them, of content models (Fig. 8 to 10)
- span: Lemma 3 for one layer: how far a kernel's shifts are from the span of its heads' maps (Fig. 11)
- course: layers over training: how far they look, and how near they are to a convolution, for quadratic encodings

A content model is a network whose attention depends on the image. All figures but curves show the first run. Without
--figures all that apply to it are drawn; for a learned_rel_content run they include figures 6 to 10. Layers and heads
count from 1; pixels count from 0 and are those that attention works on, after the down-sampling.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from attn_cnn_jax.analysis import history, images
from attn_cnn_jax.analysis.figures import centres, curves, maps, scheme, span, style, training
from attn_cnn_jax.analysis.heads import check_query, grid_shifts
from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one, beside, checked, integers, pixel, value_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.output import say
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.runs.run import Run

NAMES = ("scheme", "curves", "training", "course", "centres", "maps", "pictures", "span")
OF_ONE_LAYER = ("scheme", "training", "span")
EXAMPLE = "runs/digits --figures=centres,maps --out=figures"
PAPERS_LAYER = 4  # whose training figure 3 shows

Drawn = dict[str, Figure | list[np.ndarray]]  # by file name, of figures without suffix; frames are an animation's

figure_names = value_of(
    lambda text: checked(tuple(text.split(",")), set(text.split(",")) <= set(NAMES)), f"some of {', '.join(NAMES)}"
)
numbers = value_of(lambda text: [float(part) for part in text.split(",")], "numbers, such as 0,10,35")


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    parser.share("runs", "--step", "--data-dir", "--images")
    add("--figures", type=figure_names, metavar="NAME,...", help=f"some of {', '.join(NAMES)}")
    add("--out", type=as_path, metavar="DIR", help="where to write; RUN/figures by default")
    which = (
        "query pixel of maps and pictures; may be given several times; by default the central pixel, for content "
        "models also one a quarter of the way in"
    )
    add("--query", type=pixel, metavar="ROW,COLUMN", action="append", help=which)
    add("--order", choices=tuple(maps.ORDERS), default=maps.ORDER, help="order of the heads in maps and pictures")
    which = "test images to show, by index (0-2)"
    add("--pictures", type=integers, default=[0, 1, 2], metavar="N,...", help=which)
    which = f"layer that {', '.join(OF_ONE_LAYER)} show ({PAPERS_LAYER}, or the last where there are fewer)"
    add("--layer", type=at_least_one, metavar="N", help=which)
    add("--epochs", type=numbers, metavar="E,...", help="epochs that training shows (up to eight)")


def run(args: argparse.Namespace) -> None:
    out = args.out or beside(args.runs[0], "figures")
    for name, drawn in draw(args).items():  # written only if all could be drawn
        if isinstance(drawn, Figure):
            paths = style.save(drawn, out, name)
        else:
            paths = style.save_animation(drawn, out / name, 100, 2000)
        say("\n".join(map(str, paths)))


def draw(args: argparse.Namespace) -> Drawn:
    """Draws what was asked for, or all that applies."""
    if args.figures == ("curves",):  # metrics are enough
        return {"curves": curves.draw(args.runs)}
    run = load_run(args.runs[0], args.step)
    wanted = args.figures or applicable(run, args.runs[0])
    drawn: Drawn = {"curves": curves.draw(args.runs)} if "curves" in wanted else {}
    return drawn | (draw_attention(args, run, wanted) if set(wanted) != {"curves"} else {})


def applicable(run: Run, workdir: Path) -> tuple[str, ...]:
    """Returns the figures that a run has."""
    if run.config.model.name != "attention":
        return ("curves",)
    missing = set() if run.model.depends_on_content else {"pictures"}
    if not read_metrics(workdir / "metrics.jsonl"):
        missing.add("curves")
    if not read_positions(workdir):
        missing |= {"training", "course"}
    if not history.is_recorded(run):
        missing.add("course")
    return tuple(name for name in NAMES if name not in missing)


def draw_attention(args: argparse.Namespace, run: Run, wanted: tuple[str, ...]) -> Drawn:
    """Draws the figures that show attention."""
    if run.config.model.name != "attention":
        raise UserError(f"a {run.config.model.name} has no attention to show: allowed is --figures=curves")
    content, (height, width) = run.model.depends_on_content, images.grid(run)
    # The middle as in Fig. 4 to 6; the paper does not say which pixel Fig. 7 shows.
    queries = args.query or [images.centre(run)] + ([(height // 4, width // 4)] if content else [])
    for query in queries:
        check_query(query, (height, width))
    num_layers = len(run.model.blocks)
    if set(OF_ONE_LAYER) & set(wanted) and (args.layer or 1) > num_layers:
        raise UserError(f"--layer={args.layer}: allowed is 1 to {num_layers}")
    layer = min(args.layer or PAPERS_LAYER, num_layers) - 1
    drawn: Drawn = {}
    if "training" in wanted:
        records, name = recorded(args.runs[0]), f"training_layer{layer + 1}"
        drawn[name] = training.draw(records, layer, args.epochs)
        drawn[f"{name}.gif"] = training.animate(records, layer)
    if "course" in wanted:
        drawn["course"] = history.draw(history.history(run, recorded(args.runs[0])), "layers over training")
    if "pictures" in wanted:
        drawn |= draw_images(args, run, queries)
    if not set(wanted) & {"scheme", "centres", "maps", "span"}:
        return drawn
    num_images = images.averaged_over(run, args.images, args.data_dir)
    layers = images.mean_attention(run, num_images, args.data_dir)
    mean = f", mean over {num_images} test images" if content else ""
    num_heads, of_layer = len(layers[layer]), f"layer {layer + 1}"
    if "scheme" in wanted:
        values = np.asarray(run.model.blocks[layer].attention.merged_maps())
        title = f"{of_layer}: one pixel of its output, from {num_heads} heads{mean}"
        drawn[f"scheme_layer{layer + 1}"] = scheme.draw(layers[layer], values, queries[0], title)
    if "centres" in wanted:
        drawn["centres"] = centres.draw_run(run, layers)
    if "maps" in wanted:
        for query in queries:
            title = maps.title(query, num_images if content else None, args.order)
            drawn[f"maps_{query[0]}_{query[1]}"] = maps.draw(layers, query, args.order, title)
    if "span" in wanted:
        shifts = grid_shifts(num_heads)
        size = round(len(shifts) ** 0.5)
        title = f"{of_layer}: shifts of a {size}x{size} convolution and {num_heads} heads (Lemma 3){mean}"
        drawn[f"span_layer{layer + 1}"] = span.draw(layers[layer], shifts, queries[0], title)
    return drawn


def recorded(workdir: Path) -> list[dict]:
    """Returns the positions over training; UserError where there are none."""
    records = read_positions(workdir)
    if not records:
        why = "its attention knows none, or it was trained without recording"
        raise UserError(f"{workdir} has no recorded positions: {why}")
    return records


def draw_images(args: argparse.Namespace, run: Run, queries: list[tuple[int, int]]) -> Drawn:
    if not run.model.depends_on_content:
        raise UserError("this network's attention is the same for all images: allowed is --figures=maps")
    chosen, labels, class_names = images.images_at(run, args.pictures, args.data_dir)
    drawn: Drawn = {}
    for n, image, label in zip(args.pictures, chosen, labels, strict=True):
        layers = [layer[0] for layer in run.attention(image[None])]
        (probabilities,) = run.predict(image[None])
        best = probabilities.argmax()
        name = f"test image {n}: {class_names[label]}\npredicted {class_names[best]} ({probabilities[best]:.0%})"
        for query in queries:
            figure = maps.draw_image(image, name, layers, query, args.order, run.config.model.downsample)
            drawn[f"picture_{n}_{query[0]}_{query[1]}"] = figure
    return drawn
