"""Writes the page: `python -m attn_cnn_jax.page RUN --out page.html`."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.arguments import add_seed, positive, step
from attn_cnn_jax.errors import UserError, says_errors
from attn_cnn_jax.page import pictures as sources
from attn_cnn_jax.page.collect import page_data, picture_entries
from attn_cnn_jax.page.render import as_script_text, render, write

IMAGES = 8


@says_errors
def main(argv: list[str] | None = None) -> int:
    """Runs a command line (without the program's name); returns its exit status, 0 or 1."""
    build(parser().parse_args(argv))
    return 0


def build(arguments: argparse.Namespace) -> None:
    """Collects, writes, and says what was written and what was left out."""
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
    """The first pictures with which the page stays below a size; UserError if not even one does."""
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


def choose_pictures(run, arguments, shape):
    """The pictures that the command line asks for, and the names of the classes, empty if not to be had."""
    try:
        dataset = sources.load_dataset(run.config, arguments.data_dir)
    except UserError as error:
        if arguments.image or arguments.images == 0:
            dataset = None
        else:
            raise UserError(f"{error} Or give your own pictures with --image FILE ...") from error
    if arguments.image:
        pictures = [sources.from_file(path, shape) for path in arguments.image]
    else:
        pictures = sources.from_dataset(dataset, arguments.images, shape[:2]) if arguments.images else []
    return pictures, dataset.class_names if dataset else ()


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python -m attn_cnn_jax.page", description=__doc__)
    flags.add_argument("run", type=Path, help="run directory, as train.py leaves it")
    flags.add_argument("--out", type=Path, help="HTML file to write (default: RUN/viewer.html)")
    which = flags.add_mutually_exclusive_group()
    which.add_argument(
        "--images", type=int, default=IMAGES, metavar="N", help=f"number of test pictures (default: {IMAGES})"
    )
    which.add_argument("--image", nargs="+", metavar="FILE", help="pictures of your own, cut and resized to fit")
    flags.add_argument("--step", type=step, default="latest", help='"latest", "best", or the number of a step')
    add_seed(flags)
    flags.add_argument("--size", type=size, metavar="HxW", help="picture size in pixels (default: as in training)")
    flags.add_argument("--data-dir", metavar="DIR", help="where the data set lies (default: as in training)")
    flags.add_argument(
        "--megabytes", type=positive, default=5.0, metavar="X", help="largest size of the page (default: 5)"
    )
    return flags


def size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: height and width such as 32x48")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main())
