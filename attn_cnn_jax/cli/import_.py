"""Make a run of a checkpoint of the authors' PyTorch release, or of the arrays in one.

--config describes the network in the file: names and shapes are compared with it. A file says nothing of how its
network was trained; the run has the values of --config there. The release normalises CIFAR-100 by the statistics of
CIFAR-10, this package by its own: predictions of such a network differ a little. Needs PyTorch: pip install -e
".[torch]".

The run can be looked at, and training can start from it with --config.start.run=RUN.
"""

import argparse

from attn_cnn_jax.cli.arguments import Parser, as_path
from attn_cnn_jax.cli.configs import add_config, load_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.output import say

EXAMPLE = "best.checkpoint --config=quadratic --out=runs/theirs"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", type=as_path, help="that torch.save wrote")
    add_config(parser)
    what = "run directory to write; must not exist yet"
    parser.add_argument("--out", metavar="RUN", type=as_path, required=True, help=what)


def run(args: argparse.Namespace) -> None:
    if not args.file.is_file():
        raise UserError(f"there is no file {args.file}")
    config = load_config(args.config, args.overrides)
    from attn_cnn_jax.config import complete
    from attn_cnn_jax.config.network import describe
    from attn_cnn_jax.interop.export import refuse_existing
    from attn_cnn_jax.interop.release import import_release

    refuse_existing(args.out)
    config = complete(config)
    step = import_release(args.file, config, args.out)
    say(f"{args.out}: {describe(config.model)}, step {step}")
