"""Measure loss and accuracy of a network on the test images of its data set.

Every image counts once. --mirrored adds a line of its own: there an image is classified by the mean of its logits
and those of its mirror image, which is not the accuracy that training records.
"""

import argparse
import dataclasses
import json

import numpy as np

from attn_cnn_jax.analysis.images import load_dataset
from attn_cnn_jax.cli.arguments import Parser, at_least_one
from attn_cnn_jax.data.pictures import as_image, fit
from attn_cnn_jax.output import columns, say
from attn_cnn_jax.runs.load import load_run

EXAMPLE = "runs/digits"
LOOKS = {
    "test images": "{pictures}",
    "accuracy": "{accuracy:.2%}",
    "right": "{right:,} of {count:,}",
    "loss (nats)": "{loss:.4f}",
}


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--data-dir", "--size", "--log-pixels")
    which = "evaluate the first N test images only"
    parser.add_argument("--images", type=at_least_one, metavar="N", help=which)
    parser.add_argument("--mirrored", action="store_true", help="also with every image's mirror image")
    parser.add_argument("--json", action="store_true", help="print JSON: a list with one object per line")


def run(args: argparse.Namespace) -> None:
    run = load_run(args.run, args.step)
    images, labels = load_dataset(run, args.data_dir).test
    images, labels = images[: args.images], labels[: args.images]
    if args.size:
        run = run.at_size(args.size, log_pixels=args.log_pixels)
        images = np.stack([fit(as_image(image), args.size) for image in images])
    lines = []
    for name, mirrored in {"as they are": False, "with their mirror images": True}.items():
        if args.mirrored or not mirrored:
            found = run.evaluate(images, labels, mirrored=mirrored)
            lines.append({"pictures": name, "accuracy": found.accuracy} | dataclasses.asdict(found))
    say(json.dumps(lines) if args.json else columns(lines, LOOKS, left=len(LOOKS)))
