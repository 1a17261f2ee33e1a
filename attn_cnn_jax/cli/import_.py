"""Make a run of exported weights: a safetensors export, or a checkpoint of the authors' PyTorch release.

A safetensors export is a folder that `attn-cnn export --format=safetensors` wrote; its configuration comes along.

A file of the release tells the architecture by names and shapes, but not how the network was trained, so that the run's
configuration has the paper's values there. The release normalises CIFAR-100 by the statistics of CIFAR-10, this
package by its own: predictions of such a network differ a little. Needs PyTorch: pip install "attn-cnn-jax[torch]".

The run can be looked at, and training can start from it with --config.start.run=RUN.
"""

import argparse

from attn_cnn_jax.cli.arguments import as_path
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.pytorch import import_checkpoint
from attn_cnn_jax.interop.safetensors import import_weights
from attn_cnn_jax.runs.weights import FILE

EXAMPLE = "exported --out=runs/imported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR|FILE", type=as_path, help="folder of an export, or file of the release")
    parser.add_argument(
        "--out", metavar="RUN", type=as_path, required=True, help="run directory to write; must not exist yet"
    )


def run(args: argparse.Namespace) -> int:
    if not args.source.exists():
        raise UserError(f"there is no file or folder {args.source}")
    folder = args.source.parent if args.source.name == FILE else args.source
    import_ = import_weights if folder.is_dir() else import_checkpoint
    print(f"{args.out}: {import_(folder if folder.is_dir() else args.source, args.out)}")
    return 0
