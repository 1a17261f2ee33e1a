"""Write a run as a checkpoint of another framework.

pytorch: a file that the authors' PyTorch release loads. Needs PyTorch: pip install "attn-cnn-jax[torch]".
"""

import argparse
from pathlib import Path

from attn_cnn_jax.cli.arguments import add_step
from attn_cnn_jax.interop.pytorch import export_run

EXAMPLE = "runs/digits --format=pytorch --out=digits.checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory, as training leaves it")
    parser.add_argument("--format", choices=["pytorch"], required=True, help="what to write")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="a file that does not exist yet")
    add_step(parser)


def run(args: argparse.Namespace) -> int:
    export_run(args.run, args.out, args.step, args.seed)
    print(args.out)
    return 0
