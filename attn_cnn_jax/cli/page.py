"""Write an interactive page of what every head attends to.

One HTML file that needs no server: point at a pixel, and see what every head of every layer attends to from there.
Where attention depends on content, it is stored for each picture.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from attn_cnn_jax.cli.arguments import add_run, positive
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.page import pictures as sources
from attn_cnn_jax.page.collect import page_data, picture_entries
from attn_cnn_jax.page.render import as_script_text, render, write
from attn_cnn_jax.runs.load import Run, load_run

EXAMPLE = "runs/digits --out=page.html"
IMAGES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="HTML file to write; RUN/viewer.html by default")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--images", type=int, default=IMAGES, metavar="N", help=f"number of test pictures ({IMAGES})")
    which.add_argument("--image", nargs="+", metavar="FILE", help="your own pictures, cropped and resized to fit")
    parser.add_argument("--size", type=size, metavar="HxW", help="picture size in pixels; that of training by default")
    parser.add_argument("--megabytes", type=positive, default=5.0, metavar="X", help="largest size of the page (5)")


def run(args: argparse.Namespace) -> int:
    build(args)
    return 0


def build(arguments: argparse.Namespace) -> None:
    """Collects the data, writes the page, and prints what was written and what was left out."""
    run = load_run(arguments.run, arguments.step, arguments.seed)
    shape = tuple(run.config.model.image_shape)
    size = arguments.size or shape[:2]
    title = f"What the heads of {arguments.run.resolve().name} attend to"
    data = page_data(run, size, title=title, workdir=arguments.run)
    pictures, class_names = choose_pictures(run, arguments, (*size, shape[2]))
    if run.model.depends_on_content and not pictures:
        raise UserError("this network's attention depends on content: give it pictures, --images 1 or more")
    data["pictures"] = those_that_fit(data, picture_entries(run, pictures, class_names), arguments.megabytes)
    if len(data["pictures"]) < len(pictures):
        print(
            f"{len(data['pictures'])} of {len(pictures)} pictures fit into {arguments.megabytes:g} MB: this network's "
            "attention depends on content,\nwhich is stored with every picture; --megabytes allows more",
            file=sys.stderr,
        )
    out = arguments.out or arguments.run / "viewer.html"
    html = render(data)
    write(out, html)
    print(f"{out}: {len(data['pictures'])} pictures, {len(html.encode()) / 1e6:.2f} MB")


def those_that_fit(data: dict, entries: Iterator[dict], megabytes: float) -> list[dict]:
    """Returns the first pictures with which the page stays below a size; UserError if not even one does."""
    room, chosen = megabytes * 1e6 - len(render(data)), []
    for entry in entries:
        room -= len(as_script_text(entry))
        if room < 0 and not chosen:
            raise UserError(
                f"a page with one picture has {megabytes - room / 1e6:.1f} MB: choose --megabytes above that"
            )
        if room < 0:
            break
        chosen.append(entry)
    return chosen


def choose_pictures(
    run: Run, arguments: argparse.Namespace, shape: tuple[int, int, int]
) -> tuple[list[sources.Picture], tuple[str, ...]]:
    """Returns the pictures that the command line asks for, and the class names, none where they are unknown."""
    own = [sources.from_file(path, shape) for path in arguments.image or ()]
    try:
        dataset = sources.load_dataset(run.config, arguments.data_dir)
    except UserError as error:
        if own or arguments.images == 0:
            return own, ()
        raise UserError(f"{error} Or give your own pictures with --image FILE ...") from error
    return own or sources.from_dataset(dataset, arguments.images, shape[:2]), dataset.class_names


def size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: height and width such as 32x48")
    return int(match[1]), int(match[2])
