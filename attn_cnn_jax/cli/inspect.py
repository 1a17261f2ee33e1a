"""Say how convolutional the attention of any network is, from attention that it saved.

Anatomy: how much of each head's attention is explained by the shift between two patches alone (relative), by their
places as well (absolute), by the image (content). Then the paper's measures, how near each head is to a K x K kernel,
and for a run of this package what replacing heads by convolutions costs. Layers and heads count from 1.
"""

import argparse

from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one, image_size
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument import inputs, inspect, page
from attn_cnn_jax.output import say

EXAMPLE = "attention.npz --grid=14x14 --prefix=1 --csv=heads.csv"


def add_arguments(parser: Parser) -> None:
    layout = ".npz or .safetensors: one array (layers, images, heads, q, k), or one (images, heads, q, k) per layer"
    parser.add_argument("file", type=as_path, metavar="FILE", help=layout)
    parser.add_argument("--grid", type=image_size, metavar="ROWSxCOLUMNS", help="of patches; a square by default")
    parser.add_argument("--prefix", type=int, metavar="N", help="class and register tokens; all that the grid leaves")
    parser.add_argument("--kernel-size", type=at_least_one, default=3, metavar="K", help="3 by default")
    parser.add_argument("--csv", type=as_path, metavar="FILE", help="also write the table of heads there")
    parser.add_argument("--json", type=as_path, metavar="FILE", help="also write all numbers there")
    parser.add_argument("--page", type=as_path, metavar="FILE", help="also write a page with all maps there")


def run(args: argparse.Namespace) -> None:
    if not args.file.is_file():
        raise UserError(f"{args.file}: there is no such file")
    report = inspect(inputs.read(args.file), grid=args.grid, prefix=args.prefix, kernel_size=args.kernel_size)
    if args.csv:
        report.to_csv(args.csv)
    if args.json:
        report.to_json(args.json)
    if args.page:
        page.write(report, args.page)
    say(str(report))
