"""Classify picture files: the most probable classes of each, with their probabilities.

Takes files in any format that Pillow reads, and folders, of which it takes the images that `prepare` would take.
Images of another size are cropped to the shape that the network was trained on and resized, which the command says on
standard error. --figure draws the first images, their classes, and per layer the contours of what every head attends
to from the middle pixel.
"""

import argparse
import csv
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from attn_cnn_jax.analysis.figures import predictions, style
from attn_cnn_jax.analysis.images import dataset_of
from attn_cnn_jax.cli.arguments import add_run, as_path, at_least_one
from attn_cnn_jax.data.pictures import OTHER_SUFFIXES, SUFFIXES, is_left_behind
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.output import say
from attn_cnn_jax.page.images import from_file
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.run import Run

EXAMPLE = "runs/digits picture.png --top=3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "pictures", nargs="+", type=as_path, metavar="FILE|DIR", help="pictures, or folders of pictures"
    )
    parser.add_argument("--top", type=at_least_one, default=5, metavar="N", help="number of classes per picture (5)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: a list with one object per picture")
    form.add_argument("--csv", action="store_true", help="print CSV: one line per picture and class")
    parser.add_argument(
        "--figure", type=as_path, metavar="FILE", help="also draw them, as FILE with .png and with .svg"
    )


def run(args: argparse.Namespace) -> int:
    run = load_run(args.run, args.step)
    height, width, channels = run.config.model.image_shape
    paths = picture_files(args.pictures)
    loaded = [from_file(path, (height, width, channels)) for path in paths]
    if resized := sum(picture.resized for picture in loaded):
        text = f"cropped and resized {resized} of {len(loaded)} pictures to {height}x{width} pixels"
        say(f"{text}, the size that the network was trained on", sys.stderr)
    probabilities = run.predict(np.stack([picture.pixels for picture in loaded]))
    found = top_classes(probabilities, class_names(run, args.data_dir), args.top)
    table = [{"picture": str(path), "classes": classes} for path, classes in zip(paths, found, strict=True)]
    say(json.dumps(table, indent=1) if args.json else to_csv(table) if args.csv else to_text(table))
    if args.figure:
        pixels = [picture.pixels for picture in loaded]
        name = re.sub(r"\.(png|svg)$", "", args.figure.name)
        written = style.save(draw(run, pixels, paths, found), args.figure.parent, name)
        say("\n".join(map(str, written)), sys.stderr)
    return 0


def draw(run: Run, pixels: list[np.ndarray], paths: list[Path], found: list[list[dict]]) -> Figure:
    """Returns the figure of the first pictures."""
    shown = pixels[: predictions.MOST_IMAGES]
    attention: list[list[np.ndarray]] = [[] for _ in shown]
    if run.config.model.name == "attention":
        layers = run.attention(np.stack(shown))  # with an axis of pictures where it depends on them
        of_picture = lambda n: [layer[n] if layer.ndim == 6 else layer for layer in layers]  # noqa: E731
        attention = [of_picture(n) for n in range(len(shown))]
    classes = [[(c["name"] or str(c["class"]), c["probability"]) for c in each] for each in found]
    return predictions.draw(shown, [path.name for path in paths], classes, attention)


def picture_files(paths: list[Path]) -> list[Path]:
    """Returns the files, and those in the folders that are named as images, by name; says what else is there.

    Raises:
      UserError: for a folder without images.
    """
    files = []
    for path in paths:
        inside = sorted(file for file in path.iterdir() if not is_left_behind(file.name)) if path.is_dir() else []
        found = [file for file in inside if file.suffix.lower() in (*SUFFIXES, *OTHER_SUFFIXES)]
        if path.is_dir() and not found:
            raise UserError(f"{path} holds no images ({', '.join(SUFFIXES)}): give files, or another folder")
        if others := [file.name for file in inside if file not in found]:
            say(f"{path}: left out {len(others)} that are no images: {listed(others, 20)}", sys.stderr)
        files += found or [path]
    return files


def class_names(run: Run, data_dir: str | None) -> tuple[str, ...]:
    """Returns the names of the classes; () where neither run nor package knows them and the data is not here."""
    if run.class_names:
        return run.class_names
    try:
        return dataset_of(run.config, data_dir).class_names
    except UserError:
        return ()


def top_classes(probabilities: np.ndarray, names: tuple[str, ...], count: int) -> list[list[dict]]:
    """Returns the most probable classes of each picture, the most probable first.

    Args:
      probabilities: `(n, classes)`.
      names: of the classes; empty where they are unknown.
      count: how many classes per picture, or all where there are fewer.

    Returns:
      Per picture a list of `class` (its number from 0), `name` (None where it is unknown) and `probability`.
    """
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :count]
    return [
        [{"class": int(k), "name": names[k] if names else None, "probability": float(row[k])} for k in classes]
        for row, classes in zip(probabilities, best, strict=True)
    ]


def to_text(table: list[dict]) -> str:
    """Returns one line per picture for a terminal."""
    rows = [[each["picture"], *map(in_words, each["classes"])] for each in table]
    headers = ["picture", *(str(n) for n in range(1, len(rows[0])))]
    return tabulate(rows, headers, tablefmt="plain", disable_numparse=True)


def in_words(found: dict) -> str:
    """Returns `frog 97.5%`, or `class 6 97.5%` where the name is unknown."""
    return f"{found['name'] or 'class {class}'.format(**found)} {found['probability']:.1%}"


def to_csv(table: list[dict]) -> str:
    """Returns CSV: `picture,rank,class,name,probability`, one line per picture and class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["picture", "rank", "class", "name", "probability"])
    for each in table:
        for rank, c in enumerate(each["classes"], start=1):
            writer.writerow([each["picture"], rank, c["class"], c["name"] or "", f"{c['probability']:.6g}"])
    return text.getvalue().rstrip("\n")
