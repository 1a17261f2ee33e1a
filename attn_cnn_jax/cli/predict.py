"""Classify image files: the most probable classes of each, with their probabilities.

Takes files in any format that Pillow reads, and folders, of which it takes the images that `prepare` would take. Of a
folder of class folders it also prints the accuracy.
Images of another size are cropped to the shape that the network was trained on and resized, which the command says on
standard error. --figure draws the first images, their classes, and per layer the contours of what every head attends
to from the middle pixel.
"""

import argparse
import json
import sys
import unicodedata
from pathlib import Path

import numpy as np

from attn_cnn_jax.analysis.figures import predictions, style
from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one
from attn_cnn_jax.data.image_files import OTHER_SUFFIXES, SUFFIXES, from_file, is_left_behind
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.output import csv_text, say, table
from attn_cnn_jax.runs.by_class import confusion
from attn_cnn_jax.runs.evaluate import mean_of_classes
from attn_cnn_jax.runs.load import load_run

EXAMPLE = "runs/digits image.png --top=3"


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--size")
    parser.add_argument("images", nargs="+", type=as_path, metavar="FILE|DIR", help="images, or folders of images")
    parser.add_argument("--top", type=at_least_one, default=5, metavar="N", help="number of classes per image (5)")
    form = parser.add_mutually_exclusive_group().add_argument
    form("--json", action="store_true", help="print JSON: a list with one object per image")
    form("--csv", action="store_true", help="print CSV: one line per image and class")
    parser.add_argument("--figure", type=as_path, metavar="FILE", help="also draw them, as FILE with .png and .svg")


def run(args: argparse.Namespace) -> None:
    figure_name = style.name_of(args.figure) if args.figure else ""
    run = load_run(args.run, args.step)
    if args.size:
        run = run.at_size(args.size)
    height, width, channels = run.config.model.image_shape
    labelled = [pair for path in args.images for pair in labelled_files(path, run.class_names)]
    paths, labels = [path for path, _ in labelled], [label for _, label in labelled]
    loaded = [from_file(path, (height, width, channels), tuple(run.config.dataset.range)) for path in paths]
    if resized := sum(image.resized for image in loaded):
        text = f"cropped and resized {resized} of {len(loaded)} images to {height}x{width} pixels"
        say(text if args.size else f"{text}, the size that the network was trained on", sys.stderr)
    pixels = np.stack([image.pixels for image in loaded])
    probabilities = run.predict(pixels)
    best = top_classes(probabilities, run.class_names, args.top)
    by_image = list(zip(map(str, paths), best, strict=True))
    if args.json:
        say(json.dumps([{"image": path, "classes": classes} for path, classes in by_image], indent=1))
    elif args.csv:
        rows = [{"image": path, "rank": n} | c for path, classes in by_image for n, c in enumerate(classes, start=1)]
        say(csv_text(rows).rstrip("\n"))
    else:
        rows = [[path, *(f"{named(c)} {c['probability']:.1%}" for c in classes)] for path, classes in by_image]
        say(table(rows, ["image", *map(str, range(1, len(rows[0])))], left=len(rows[0])))
    if any(label >= 0 for label in labels):
        known = np.flatnonzero(np.array(labels) >= 0)
        matrix = confusion(probabilities[known].argmax(axis=1), np.array(labels)[known], len(run.class_names))
        numbers = f"{np.trace(matrix) / len(known):.2%}, {np.trace(matrix):,} of {len(known):,}"
        balanced = mean_of_classes(np.diag(matrix), matrix.sum(axis=1))
        said = f"accuracy {numbers} right by their folders; balanced {balanced:.2%}"
        say(said, sys.stderr if args.json or args.csv else None)
    if args.figure:
        shown = pixels[: predictions.MOST_IMAGES]
        layers = run.attention(shown) if run.config.model.name == "attention" else []
        # Only attention that depends on the image has an axis of images.
        attention = [[layer[n] if layer.ndim == 6 else layer for layer in layers] for n in range(len(shown))]
        classes = [[(named(c), c["probability"]) for c in each] for each in best]
        figure = predictions.draw(list(shown), [path.name for path in paths], classes, attention)
        written = style.save(figure, args.figure.parent, figure_name)
        say("\n".join(map(str, written)), sys.stderr)


def image_files(path: Path) -> list[Path]:
    """Returns a file, or those of a folder that are named as images, by name; says what else is there."""
    if not path.is_dir():
        return [path]
    inside = sorted(file for file in path.iterdir() if not is_left_behind(file.name))
    images = [file for file in inside if is_image(file)]
    if not images:
        raise UserError(f"{path} holds no images ({', '.join(SUFFIXES)}): give files, or another folder")
    if others := [file.name for file in inside if file not in images]:
        say(f"{path}: left out {len(others)} that are no images: {listed(others, 20)}", sys.stderr)
    return images


def labelled_files(path: Path, class_names: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Returns images and their classes, -1 where that is not known: of a file, a folder, or a folder of class folders.

    UserError for a folder among class folders whose name is no class of the network.
    """
    folders = [each for each in sorted(path.iterdir()) if is_class_folder(each)] if path.is_dir() else []
    if not folders or any(map(is_image, path.iterdir())):  # images beside other folders
        return [(file, -1) for file in image_files(path)]
    names = [unicodedata.normalize("NFC", folder.name) for folder in folders]
    if unknown := [name for name in names if name not in class_names]:
        classes = listed(class_names) or "not known by name"
        raise UserError(f"{path}: {listed(unknown)} is no class of the network; they are {classes}")
    pairs = zip(folders, names, strict=True)
    return [(file, class_names.index(name)) for folder, name in pairs for file in image_files(folder)]


def is_image(path: Path) -> bool:
    return path.suffix.lower() in (*SUFFIXES, *OTHER_SUFFIXES) and not is_left_behind(path.name)


def is_class_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".") and not is_left_behind(path.name)


def named(guess: dict) -> str:
    """Returns the name of a class, or `class 6` where it is unknown."""
    return guess["name"] or f"class {guess['class']}"


def top_classes(probabilities: np.ndarray, names: tuple[str, ...], count: int) -> list[list[dict]]:
    """Returns per image, a row of `(n, classes)`, the `count` most probable classes, the most probable first.

    Each has `class` (its number from 0), `name` (None where `names` is empty) and `probability`.
    """
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :count]
    return [
        [{"class": int(k), "name": names[k] if names else None, "probability": float(row[k])} for k in classes]
        for row, classes in zip(probabilities, best, strict=True)
    ]
