"""Draw the paper's figures of a run as PNG and SVG files.

- scheme: how one layer computes a pixel, drawn from that layer (Fig. 1)
- curves: accuracy and loss over epochs, of all runs given (Fig. 2)
- training: centres of one layer's heads over training, panels and an animated GIF (Fig. 3)
- centres: centres of all heads, contours that hold 50% and 90% of the attention (Fig. 4, 12 to 14)
- maps: attention of one query pixel, layers by heads; the mean over test pictures for content models (Fig. 5 to 7)
- pictures: single test pictures and the attention to them, of content models (Fig. 8 to 10)
- span: Lemma 3 for one layer: how far a kernel's shifts are from the span of its heads' maps (Fig. 11)
- course: layers over training: how far they look, and how near they are to a convolution, for quadratic encodings

A content model is a network whose attention depends on the picture. All figures but curves show the first run. Without
--figures all that apply to it are drawn; for a learned_rel_content run they include figures 6 to 10. Layers and heads
count from 1; pixels count from 0 and are those that attention works on, after the down-sampling.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from attn_cnn_jax.analysis import history, pictures
from attn_cnn_jax.analysis.figures import centres, curves, maps, scheme, span, style, training
from attn_cnn_jax.analysis.heads import check_query, grid_shifts
from attn_cnn_jax.cli.arguments import (
    add_data_dir,
    add_images,
    add_runs,
    add_step,
    as_path,
    at_least_one,
    beside,
    integers,
    pixel,
)
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.output import say
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.runs.run import Run

NAMES = ("scheme", "curves", "training", "course", "centres", "maps", "pictures", "span")
OF_ONE_LAYER = ("scheme", "training", "span")
Save = Callable[[], list[Path]]  # writes a figure that is drawn; returns its files
EXAMPLE = "runs/digits --figures=centres,maps --out=figures"
PAPERS_LAYER = 4  # whose training figure 3 shows
LAYER_HELP = f"layer that {', '.join(OF_ONE_LAYER)} show ({PAPERS_LAYER}, or the last where there are fewer)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument("--figures", type=figure_names, metavar="NAME,...", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--out", type=as_path, metavar="DIR", help="where to write; RUN/figures by default")
    add_step(parser)
    parser.add_argument(
        "--query",
        type=pixel,
        metavar="ROW,COLUMN",
        action="append",
        help="query pixel of maps and pictures; may be given several times; by default the central pixel, for content "
        "models also one a quarter of the way in",
    )
    parser.add_argument(
        "--order", choices=tuple(maps.ORDERS), default=maps.ORDER, help="order of the heads in maps and pictures"
    )
    add_images(parser, pictures.AVERAGED)
    parser.add_argument(
        "--pictures", type=integers, default=[0, 1, 2], metavar="N,...", help="test pictures to show, by index (0-2)"
    )
    parser.add_argument("--layer", type=at_least_one, help=LAYER_HELP)
    parser.add_argument("--epochs", type=numbers, metavar="E,...", help="epochs that training shows (up to eight)")
    add_data_dir(parser)


def run(args: argparse.Namespace) -> int:
    for path in draw(args):
        say(str(path))
    return 0


def figure_names(text: str) -> tuple[str, ...]:
    """Returns the names of figures with commas between them."""
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"{text}: choose some of {', '.join(NAMES)}")
    return chosen


def numbers(text: str) -> list[float]:
    """Returns the numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed are numbers, such as 0,10,35") from None


def draw(args: argparse.Namespace) -> list[Path]:
    """Draws what was asked for and then, if all of it can be drawn, writes it; returns the files."""
    out = args.out or beside(args.runs[0], "figures")
    if args.figures == ("curves",):  # metrics are enough
        return style.save(curves.draw(args.runs), out, "curves")
    run = load_run(args.runs[0], args.step)
    wanted = args.figures or applicable(run, args.runs[0])
    saves = []
    if "curves" in wanted:
        saves.append(partial(style.save, curves.draw(args.runs), out, "curves"))
    if set(wanted) != {"curves"}:
        saves += draw_attention(args, run, wanted, out)
    return [path for save in saves for path in save()]


def draw_attention(args: argparse.Namespace, run: Run, wanted: tuple[str, ...], out: Path) -> list[Save]:
    """Draws the figures that show attention; returns what saves them."""
    if run.config.model.name != "attention":
        raise UserError(f"a {run.config.model.name} has no attention to show: allowed is --figures=curves")
    queries = args.query or pictures.default_queries(run)
    for query in queries:
        check_query(query, pictures.grid(run))
    layer = chosen_layer(args.layer, len(run.model.blocks)) if set(OF_ONE_LAYER) & set(wanted) else 0
    saves: list[Save] = []
    if "training" in wanted:
        saves += draw_training(args, run, out, layer)
    if "course" in wanted:
        figure = history.draw(history.history(run, read_positions(args.runs[0])), "layers over training")
        saves.append(partial(style.save, figure, out, "course"))
    shown = set(wanted) - {"curves", "training", "course", "pictures"}
    num_images = pictures.averaged_over(run, args.images, args.data_dir) if shown else 0
    layers = pictures.mean_attention(run, num_images, args.data_dir) if shown else []
    mean = f", mean over {num_images} test pictures" if run.model.depends_on_content else ""
    if "scheme" in wanted:
        values = np.asarray(run.model.blocks[layer].attention.merged_maps())
        title = f"layer {layer + 1}: one pixel of its output, from {len(values)} heads{mean}"
        figure = scheme.draw(layers[layer], values, queries[0], title)
        saves.append(partial(style.save, figure, out, f"scheme_layer{layer + 1}"))
    if "centres" in wanted:
        saves.append(partial(style.save, centres.draw_run(run, layers), out, "centres"))
    if "maps" in wanted:
        for query in queries:
            title = maps.title(query, num_images if run.model.depends_on_content else None, args.order)
            figure = maps.draw(layers, query, args.order, title)
            saves.append(partial(style.save, figure, out, f"maps_{query[0]}_{query[1]}"))
    if "pictures" in wanted:
        saves += draw_pictures(args, run, out, queries)
    if "span" in wanted:
        shifts = grid_shifts(len(layers[layer]))
        size = round(len(shifts) ** 0.5)
        title = (
            f"layer {layer + 1}: shifts of a {size}x{size} convolution and {len(layers[layer])} heads (Lemma 3){mean}"
        )
        figure = span.draw(layers[layer], shifts, queries[0], title)
        saves.append(partial(style.save, figure, out, f"span_layer{layer + 1}"))
    return saves


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


def chosen_layer(number: int | None, num_layers: int) -> int:
    """Returns the layer, from 0, that `--layer` names; the paper's by default."""
    number = number or min(PAPERS_LAYER, num_layers)
    if number > num_layers:
        raise UserError(f"--layer={number}: allowed is 1 to {num_layers}")
    return number - 1


def draw_training(args: argparse.Namespace, run: Run, out: Path, layer: int) -> list[Save]:
    records = read_positions(args.runs[0])
    if not records:
        raise UserError(
            f"{args.runs[0]} has no recorded positions: its attention knows none, or it was trained without recording"
        )
    name = f"training_layer{layer + 1}"
    frames = training.animate(records, layer)
    return [
        partial(style.save, training.draw(records, layer, args.epochs), out, name),
        partial(style.save_animation, frames, out / f"{name}.gif", 100, 2000),
    ]


def draw_pictures(args: argparse.Namespace, run: Run, out: Path, queries: list[tuple[int, int]]) -> list[Save]:
    if not run.model.depends_on_content:
        raise UserError("this network's attention is the same for all pictures: allowed is --figures=maps")
    images, labels, class_names = pictures.pictures_at(run, args.pictures, args.data_dir)
    saves = []
    for n, image, label in zip(args.pictures, images, labels, strict=True):
        layers = [layer[0] for layer in run.attention(image[None])]
        (probabilities,) = run.predict(image[None])
        best = probabilities.argmax()
        name = f"test picture {n}: {class_names[label]}\npredicted {class_names[best]} ({probabilities[best]:.0%})"
        for query in queries:
            figure = maps.draw_picture(image, name, layers, query, args.order, run.config.model.downsample)
            saves.append(partial(style.save, figure, out, f"picture_{n}_{query[0]}_{query[1]}"))
    return saves
