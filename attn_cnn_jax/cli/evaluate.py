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
from attn_cnn_jax.output import say, table
from attn_cnn_jax.runs.load import load_run

EXAMPLE = "runs/digits"
HEADER = ("test images", "accuracy", "right", "loss (nats)")


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--data-dir", "--size", "--log-pixels")
    which = "evaluate the first N test images only"
    parser.add_argument("--images", type=at_least_one, metavar="N", help=which)
    parser.add_argument("--mirrored", action="store_true", help="also with every image's mirror image")
    parser.add_argument("--json", action="store_true", help="print JSON: a list with one object per line")


def run(args: argparse.Namespace) -> None:
    run = load_run(args.run, args.step)
    test = load_dataset(run, args.data_dir).test
    if args.images:
        test = test.at(np.arange(min(args.images, len(test.labels))))
    if args.size:
        run = run.at_size(args.size, log_pixels=args.log_pixels)
        test = test._replace(images=np.stack([fit(as_image(image), args.size) for image in test.images]))
    kinds = {"as they are": False} | ({"with their mirror images": True} if args.mirrored else {})
    found = {name: run.evaluate(test.images, test.labels, mirrored=mirrored) for name, mirrored in kinds.items()}
    if args.json:
        lines = [{"pictures": name, "accuracy": e.accuracy} | dataclasses.asdict(e) for name, e in found.items()]
        say(json.dumps(lines))
        return
    rows = [(name, f"{e.accuracy:.2%}", f"{e.right:,} of {e.count:,}", f"{e.loss:.4f}") for name, e in found.items()]
    say(table(rows, HEADER, left=4))
