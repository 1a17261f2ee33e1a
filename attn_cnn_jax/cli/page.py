"""Write an interactive page of what every head attends to.

One HTML file that needs no server: point at a pixel, and see what every head of every layer attends to from there.
The network itself runs in the page: draw or bring an image, switch heads off, move them, turn layers into
convolutions. Networks of more than 3 million parameters do not, nor do PaPE and RoPE: they are shown by their attention
to positions, or, where that depends on the image, to a few images.
"""

import argparse
import sys

from attn_cnn_jax.cli.arguments import Parser, as_path, beside, from_zero, image_size
from attn_cnn_jax.data.image_files import from_file
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.output import say
from attn_cnn_jax.page import MOST_PARAMETERS

EXAMPLE = "runs/digits --out=page.html"
IMAGES = 8


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--data-dir")
    parser.add_argument("--out", type=as_path, metavar="FILE", help="HTML file to write; RUN/viewer.html by default")
    which = parser.add_mutually_exclusive_group().add_argument
    which("--images", type=from_zero, default=IMAGES, metavar="N", help=f"number of test images ({IMAGES})")
    which("--image", nargs="+", default=[], metavar="FILE", help="your own images, cropped and resized to fit")
    size = "pixels of an image; as in training by default"
    parser.add_argument("--size", type=image_size, metavar="64|HxW", help=size)
    most = f"parameters of the largest network that runs in the page ({MOST_PARAMETERS})"
    parser.add_argument("--parameters", type=from_zero, default=MOST_PARAMETERS, metavar="N", help=most)


def run(args: argparse.Namespace) -> None:
    import numpy as np

    from attn_cnn_jax.page.build import build, check
    from attn_cnn_jax.page.images import shown_images
    from attn_cnn_jax.page.network import reason_not_to_compute
    from attn_cnn_jax.runs.load import load_run

    run = load_run(args.run, args.step)
    *size, channels = run.config.model.image_shape
    height, width = args.size or size
    check(run, (height, width))
    own = [from_file(path, (height, width, channels), tuple(run.config.dataset.range)) for path in args.image]
    others, dataset, error = shown_images(run, 0 if own else args.images, (height, width), args.data_dir)
    images = own or others
    if error:
        say(f"Without test images and accuracy ({len(images)} other images): {error}", sys.stderr)
    out = args.out or beside(args.run, "viewer.html")
    grid = height // run.config.model.downsample, width // run.config.model.downsample
    reason = reason_not_to_compute(run, grid, args.parameters)
    if reason and run.model.depends_on_content and images:
        from attn_cnn_jax.instrument import page as page_of_maps
        from attn_cnn_jax.instrument.inspect import inspect

        pixels = np.stack([image.pixels for image in images])
        shown = page_of_maps.write(inspect(run, pixels, grid=grid), out, pixels)
        say(f"{out}: attention to {shown} images")
    else:
        title = f"What the heads of {args.run.resolve().name} attend to"
        html = build(run, images, dataset, (height, width), title=title, most_parameters=args.parameters)
        write_atomically(out, html)
        say(f"{out}: {len(images)} images, {len(html.encode()) / 1e6:.2f} MB")
    if reason:
        say(f"The page shows attention, and does not run the network: {reason}.")
