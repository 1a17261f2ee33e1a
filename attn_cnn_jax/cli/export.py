"""Write a run's network for use elsewhere.

safetensors: a folder with the arrays by name. It can be given wherever a RUN is asked for.
jax: a folder with StableHLO, which jax.export loads without this package, for CPU, CUDA and TPU.
onnx: a folder with a file for ONNX Runtime. Needs jax2onnx: pip install -e ".[onnx]".
pytorch: a file that the authors' PyTorch release loads. Needs PyTorch: pip install -e ".[torch]".

The folders also hold config.json and a model card: data, accuracy, classes, normalisation, how to load the network.
Each folder is read back, and the largest difference of its logits from the run's is printed.
"""

import argparse

from attn_cnn_jax.cli.arguments import Parser, as_path
from attn_cnn_jax.interop import FORMATS
from attn_cnn_jax.output import say

EXAMPLE = "runs/digits --format=safetensors --out=exported"


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    what = "a folder or file that does not exist yet"
    parser.add_argument("--out", metavar="DIR|FILE", type=as_path, required=True, help=what)
    parser.add_argument("--note", default="", metavar="TEXT", help="a sentence on the data for the model card")


def run(args: argparse.Namespace) -> None:
    from attn_cnn_jax.interop.export import check, export
    from attn_cnn_jax.runs.load import load_run

    check(args.out, args.format, args.note)
    say(export(load_run(args.run, args.step), args.out, args.format, args.note))
