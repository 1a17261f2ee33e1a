"""Compile training for GPUs or TPUs that are not here: does it fit, how long does it take at least?

XLA compiles the real training steps and evaluation of a configuration for the devices that --for names: on any
machine, without them, in one to five minutes for GPUs and two to thirty for TPUs. Memory and what devices send each
other are those of the compiled programs. The time is a lower bound, the FLOPs of the
network over the peak of the devices: no run is as fast. --config.start is left out.
"""

import argparse
import contextlib
import datetime
import json
from typing import Any

import jax

from attn_cnn_jax import compilation
from attn_cnn_jax.cli.arguments import Parser
from attn_cnn_jax.cli.configs import add_config, load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.output import say

EXAMPLE = "--config=quadratic --for=h100 --config.model.dtype=bfloat16"


def add_arguments(parser: Parser) -> None:
    add_config(parser)
    parser.add_argument("--for", dest="target", metavar="TARGET", required=True, help=compilation.ALLOWED)
    parser.add_argument("--json", action="store_true", help="print JSON: one object, in bytes and seconds")


def run(args: argparse.Namespace) -> None:
    target, config = compilation.parse(args.target), complete(load_config(args.config, args.overrides))
    # Plugins would look for devices that are not here, and complain.
    with contextlib.suppress(RuntimeError):  # a backend is already in use
        jax.config.update("jax_platforms", "cpu")
    result = {"config": args.config} | compilation.report(config, target)
    say(json.dumps(result, indent=1) if args.json else to_text(**result))


def to_text(*, memory: dict[str, int], bound: dict[str, float], collectives: dict[str, int], **of: Any) -> str:
    """Returns a report, see `compilation.report`, as people read it."""
    parts = ("needed", "available", "arguments", "temporaries")
    needed, available, arguments, temporaries = (f"{memory[part] / compilation.GIB:,.2f}" for part in parts)
    sent = ", ".join(f"{kind} of {size / 1e6:,.1f} MB" for kind, size in collectives.items()) or "nothing"
    duration = datetime.timedelta(seconds=round(bound["run"]))
    return f"""\
{of["config"]}: batch {of["batch_size"]}, {of["dtype"]}, on {of["devices"]} x {of["device_kind"]} ({of["target"]})
fits: {needed} of {available} GiB per device ({arguments} arguments, {temporaries} temporaries)
between devices, per step: {sent}
a step takes at least {1e3 * bound["step"]:,.3g} ms: {bound["flops"] / 1e12:,.3g} TFLOP at the peak
a run takes at least {duration}: {bound["steps"]:,} steps, and evaluations on top"""
