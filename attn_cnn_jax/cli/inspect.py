"""Say how convolutional the attention of any network is, from attention that it saved.

Anatomy: how much of each head's attention is explained by the shift between two patches alone (relative), by their
places as well (absolute), by the image (content). Then the paper's measures, and how near each head is to a K x K
kernel. Layers and heads count from 1. What replacing heads costs needs the network: attn_cnn_jax.inspect.
"""

import argparse
from typing import Any

import numpy as np

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one, from_zero, image_size
from attn_cnn_jax.files import replacing
from attn_cnn_jax.instrument import attention, figures, page, text
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.output import say

EXAMPLE = "attention.npz --grid=14x14 --prefix=1 --csv=heads.csv"


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    layout = ".npz or .safetensors: one array (layers, images, heads, q, k), or one (images, heads, q, k) per layer"
    add("file", type=as_path, metavar="FILE", help=layout)
    add("--grid", type=image_size, metavar="ROWSxCOLUMNS", help="of patches; a square by default")
    add("--prefix", type=from_zero, metavar="N", help="class and register tokens; all that the grid leaves")
    add("--kernel-size", type=at_least_one, default=3, metavar="K", help="3 by default")
    add("--csv", type=as_path, metavar="FILE", help="also write the table of heads there")
    add("--json", type=as_path, metavar="FILE", help="also write all numbers there")
    add("--heads", action="store_true", help="print all columns of all heads")
    add("--rollout", type=as_path, metavar="FILE.npz", help="also write rollout and class-token maps there")
    add("--figures", type=as_path, metavar="DIR", help="also draw anatomy and maps there, as PNG and SVG")
    add("--page", type=as_path, metavar="FILE", help="also write a page with all maps there")


def run(args: argparse.Namespace) -> None:
    report = inspect(attention.read(args.file), grid=args.grid, prefix=args.prefix, kernel_size=args.kernel_size)
    if args.csv:
        report.to_csv(args.csv)
    if args.json:
        report.to_json(args.json)
    for name, figure in figures.draw(report).items() if args.figures else ():
        style.save(figure, args.figures, name)
    if args.page:
        page.write(report, args.page)
    if args.rollout:
        maps: dict[str, Any] = report.maps()
        with replacing(args.rollout) as file:
            np.savez(file, **maps)
    say(str(report))
    if args.heads:
        say("\n" + text.as_text(report.rows()))
