"""Draw the paper's figures of a run as PNG and SVG files.

- curves: accuracy and loss over epochs, of all runs given (Fig. 2)
- training: centres of one layer's heads over training, panels and an animated GIF (Fig. 3)
- centres: centres of all heads, contours that hold 50% and 90% of the attention (Fig. 4, 12 to 14)
- maps: attention of one query pixel, layers by heads; the mean over test pictures for content models (Fig. 5 to 7)
- pictures: single test pictures and the attention to them, of content models (Fig. 8 to 10)

All but curves are of the first run. Without --figures, those that apply. Layers and heads count from 1; pixels
count from 0 and are those that attention works on, after the down-sampling.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.analysis.figures import centres, curves, maps, style
from attn_cnn_jax.analysis.heads import check_query
from attn_cnn_jax.cli.arguments import add_step, as_path, at_least_one, beside, pixel, run_directory
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.load import Run, load_run
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions

NAMES = ("curves", "training", "centres", "maps", "pictures")
Save = Callable[[], list[Path]]  # writes a figure that is drawn; returns its files
EXAMPLE = "runs/digits --figures=centres,maps --out=figures"
PAPERS_LAYER = 4  # whose training figure 3 shows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", type=run_directory, nargs="+", help="run directories, as training leaves them"
    )
    parser.add_argument("--figures", type=figure_names, metavar="NAME,...", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--out", type=as_path, metavar="DIR", help="where to write; RUN/figures by default")
    add_step(parser)
    parser.add_argument("--query", type=pixel, metavar="ROW,COLUMN", help="of the maps; the central pixel by default")
    parser.add_argument("--order", choices=maps.ORDERS, default=maps.ORDERS[0], help="of the heads in maps")
    parser.add_argument("--images", type=at_least_one, default=100, help="test pictures to average over (100)")
    parser.add_argument("--pictures", type=at_least_one, default=3, help="single test pictures to show (3)")
    parser.add_argument("--layer", type=at_least_one, help=f"layer of the training figure; {PAPERS_LAYER} or the last")
    parser.add_argument("--epochs", type=numbers, metavar="E,...", help="epochs of its panels; by default eight")
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the data set, if not the one used in training")


def run(args: argparse.Namespace) -> int:
    for path in draw(args):
        print(path)
    return 0


def figure_names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"{text}: choose some of {', '.join(NAMES)}")
    return chosen


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def draw(args: argparse.Namespace) -> list[Path]:
    """Draws what was asked for and then, if all of it can be drawn, writes it; returns the files."""
    run = load_run(args.runs[0], args.step, args.seed)
    wanted = args.figures or applicable(run, args.runs[0])
    out = args.out or beside(args.runs[0], "figures")
    saves = []
    if "curves" in wanted:
        saves.append(partial(style.save, curves.draw(args.runs), out, "curves"))
    if set(wanted) != {"curves"}:
        saves += draw_attention(args, run, wanted, out)
    return [path for save in saves for path in save()]


def draw_attention(args: argparse.Namespace, run: Run, wanted: tuple[str, ...], out: Path) -> list[Save]:
    """Returns the figures that show attention, drawn and to be saved."""
    if run.config.model.name != "attention":
        raise UserError(f"a {run.config.model.name} has no attention to show: allowed is --figures=curves")
    query = args.query or pictures.centre(run)
    check_query(query, pictures.grid(run))
    saves: list[Save] = []
    if "training" in wanted:
        saves += draw_training(args, run, out)
    shown = {"centres", "maps"} & set(wanted)
    layers = pictures.mean_attention(run, args.images, args.data_dir) if shown else []
    if "centres" in wanted:
        saves.append(partial(style.save, centres.draw_run(run, layers), out, "centres"))
    if "maps" in wanted:
        title = maps.title(query, args.images if run.model.depends_on_content else None)
        figure = maps.draw(layers, query, args.order, title)
        saves.append(partial(style.save, figure, out, f"maps_{query[0]}_{query[1]}"))
    if "pictures" in wanted:
        saves += draw_pictures(args, run, out, query)
    return saves


def applicable(run: Run, workdir: Path) -> tuple[str, ...]:
    """Returns the figures that a run has."""
    if run.config.model.name != "attention":
        return ("curves",)
    missing = set() if run.model.depends_on_content else {"pictures"}
    if not read_metrics(workdir / "metrics.jsonl"):
        missing.add("curves")
    if not read_positions(workdir, run.seed):
        missing.add("training")
    return tuple(name for name in NAMES if name not in missing)


def draw_training(args: argparse.Namespace, run: Run, out: Path) -> list[Save]:
    records = read_positions(args.runs[0], run.seed)
    if not records:
        raise UserError(
            f"{args.runs[0]} has no recorded positions: its attention knows none, or it was trained without recording"
        )
    num_layers = len(records[0]["layers"])
    number = args.layer or min(PAPERS_LAYER, num_layers)
    if number > num_layers:
        raise UserError(f"--layer={number}: allowed is 1 to {num_layers}")
    name = f"training_layer{number}"
    frames = centres.animate_training(records, number - 1)
    return [
        partial(style.save, centres.draw_training(records, number - 1, args.epochs), out, name),
        partial(style.save_animation, frames, out / f"{name}.gif", 100, 2000),
    ]


def draw_pictures(args: argparse.Namespace, run: Run, out: Path, query: tuple[int, int]) -> list[Save]:
    if not run.model.depends_on_content:
        raise UserError("this network's attention is the same for all pictures: allowed is --figures=maps")
    images = pictures.first_pictures(run, args.pictures, args.data_dir).images
    saves = []
    for n, image in enumerate(images):
        layers = [layer[0] for layer in run.attention(image[None])]
        name = f"test picture {n}"
        figure = maps.draw_picture(image, name, layers, query, args.order, run.config.model.downsample)
        saves.append(partial(style.save, figure, out, f"picture_{n}_{query[0]}_{query[1]}"))
    return saves
