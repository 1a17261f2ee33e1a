"""Make a run of a checkpoint of the authors' PyTorch release, or of the arrays in one.

--config describes the network in the file: names and shapes are compared with it. A file says nothing of how its
network was trained; the run has the values of --config there. The release normalises CIFAR-100 by the statistics of
CIFAR-10, this package by its own: predictions of such a network differ a little. Needs PyTorch: pip install -e
".[torch]".

The run can be looked at, and training can start from it with --config.start.run=RUN.
"""

import argparse

from attn_cnn_jax.cli.arguments import Parser, as_path, take_overrides
from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.card import describe
from attn_cnn_jax.interop.export import refuse_existing
from attn_cnn_jax.interop.release import import_release
from attn_cnn_jax.output import say

EXAMPLE = "best.checkpoint --config=quadratic --out=runs/theirs"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", type=as_path, help="that torch.save wrote")
    parser.add_argument("--config", metavar="NAME|FILE", help=f"{', '.join(known_configs())}, or a file like theirs")
    parser.add_argument("--out", metavar="RUN", type=as_path, help="run directory to write; must not exist yet")
    take_overrides(parser)
    parser.usage = "%(prog)s FILE --config=NAME|FILE --out=RUN [--config.KEY=VALUE ...]"


def run(args: argparse.Namespace) -> int:
    if args.config is None or args.out is None:
        return args.refuse(f"{'--config' if args.config is None else '--out'} is missing")
    if not args.file.is_file():
        raise UserError(f"there is no file {args.file}")
    refuse_existing(args.out)
    config = complete(load_config(args.config, args.overrides))
    step = import_release(args.file, config, args.out)
    say(f"{args.out}: {describe(config)}, step {step}")
    return 0
