"""Write an interactive page of what every head attends to.

One HTML file that needs no server: point at a pixel, and see what every head of every layer attends to from there.
The network itself runs in the page: draw or bring a picture, switch heads off, move them. Networks of more than 3
million parameters do not; their attention, where it depends on content, is stored with each picture.
Two runs, or one run twice, are shown side by side, with one query pixel.
"""

import argparse
import sys
from pathlib import Path

from attn_cnn_jax.analysis.pictures import dataset_of
from attn_cnn_jax.cli.arguments import add_data_dir, add_step, as_path, beside, image_size, positive, run_directory
from attn_cnn_jax.data.stored import AnyDataset
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.page.build import MEGABYTES, Page, build
from attn_cnn_jax.page.collect import check
from attn_cnn_jax.page.network import MOST_PARAMETERS
from attn_cnn_jax.page.pictures import Picture, from_dataset, from_file
from attn_cnn_jax.page.render import render_pair, write
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.run import Run

EXAMPLE = "runs/digits --out=page.html"
IMAGES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", type=run_directory, nargs="+", help="run directory; two are shown side by side"
    )
    add_step(parser)
    add_data_dir(parser)
    parser.add_argument("--out", type=as_path, metavar="FILE", help="HTML file to write; RUN/viewer.html by default")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--images", type=int, default=IMAGES, metavar="N", help=f"number of test pictures ({IMAGES})")
    which.add_argument("--image", nargs="+", metavar="FILE", help="your own pictures, cropped and resized to fit")
    parser.add_argument(
        "--size", type=image_size, metavar="64|HxW", help="pixels of a picture; as in training by default"
    )
    most = f"largest size of a run's page without weights ({MEGABYTES:g})"
    parser.add_argument("--megabytes", type=positive, default=MEGABYTES, metavar="X", help=most)
    most = f"parameters of the largest network that runs in the page ({MOST_PARAMETERS})"
    parser.add_argument("--parameters", type=int, default=MOST_PARAMETERS, metavar="N", help=most)


def run(args: argparse.Namespace) -> int:
    if len(args.run) > 2:
        raise UserError(f"{len(args.run)} runs: a page shows one run, or two side by side")
    pages = [page_of(args, workdir) for workdir in args.run]
    html = pages[0].html if len(pages) == 1 else render_pair([page.html for page in pages])
    out = args.out or beside(args.run[0], "viewer.html" if len(pages) == 1 else "compare.html")
    write(out, html)
    print(f"{out}: {', '.join(f'{page.pictures} pictures' for page in pages)}, {len(html.encode()) / 1e6:.2f} MB")
    for workdir, page in zip(args.run, pages, strict=True):
        if page.reason:
            print(f"{workdir}: the page shows attention, and does not run the network: {page.reason}.")
    return 0


def page_of(arguments: argparse.Namespace, workdir: Path) -> Page:
    """Returns the page of one run, and prints how many pictures were left out."""
    run = load_run(workdir, arguments.step, arguments.seed)
    height, width, channels = run.config.model.image_shape
    if asked := arguments.size:
        height, width = (asked, asked) if isinstance(asked, int) else asked
    size = height, width
    check(run, size)
    pictures, dataset = choose_pictures(run, arguments, (height, width, channels))
    page = build(
        run,
        pictures,
        dataset,
        size,
        title=f"What the heads of {workdir.resolve().name} attend to",
        workdir=workdir,
        megabytes=arguments.megabytes,
        most_parameters=arguments.parameters,
    )
    if page.pictures < len(pictures):
        print(
            f"{page.pictures} of {len(pictures)} pictures fit into {arguments.megabytes:g} MB: this network's "
            "attention depends on content,\nwhich is stored with every picture; --megabytes allows more",
            file=sys.stderr,
        )
    return page


def choose_pictures(
    run: Run, arguments: argparse.Namespace, shape: tuple[int, int, int]
) -> tuple[list[Picture], AnyDataset | None]:
    """Returns the pictures that the command line asks for, and the data set, None where it is not needed and not there.

    Args:
      run: the run.
      arguments: of the command line.
      shape: (H, W, C) of the pictures.
    """
    own = [from_file(path, shape) for path in arguments.image or ()]
    try:
        dataset = dataset_of(run.config, arguments.data_dir, download=False)
    except UserError as error:
        if own or arguments.images == 0:
            return own, None
        raise UserError(f"{error} Or give your own pictures with --image FILE ...") from error
    return own or from_dataset(dataset, arguments.images, shape[:2]), dataset
