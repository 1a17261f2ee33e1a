"""Make a run of a checkpoint of the authors' PyTorch release.

The architecture follows from names and shapes; how the network was trained is not in such a file, so that the run's
configuration has the paper's values there. The run can be looked at, and training can start from it with
--config.start.run=RUN. The release normalises CIFAR-100 by the statistics of CIFAR-10, this package by its own:
predictions of such a network differ a little. Needs PyTorch: pip install "attn-cnn-jax[torch]".
"""

import argparse
from pathlib import Path

from attn_cnn_jax.interop.pytorch import import_checkpoint

EXAMPLE = "digits.checkpoint --out=runs/imported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="file of the release")
    parser.add_argument(
        "--out", metavar="RUN", type=Path, required=True, help="run directory to write; must not exist yet"
    )


def run(args: argparse.Namespace) -> int:
    print(f"{args.out}: {import_checkpoint(args.checkpoint, args.out)}")
    return 0
