"""Compile training for GPUs or TPUs that are not here: does it fit, how long does it take at least?

XLA compiles the real training steps and evaluation of a configuration for the devices that --for names: on any
machine, without them, in one to five minutes for GPUs and two to thirty for TPUs. Memory and what devices send each
other are those of the compiled programs. The time is a lower bound, the FLOPs of the
network over the peak of the devices: no run is as fast. --config.start is left out.
"""

import argparse
import contextlib
import json
from typing import Any

import jax

from attn_cnn_jax import compilation
from attn_cnn_jax.cli.arguments import Parser, take_overrides
from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.compilation import GIB
from attn_cnn_jax.config import complete
from attn_cnn_jax.output import say

EXAMPLE = "--config=quadratic --for=h100 --config.model.dtype=bfloat16"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--config", metavar="NAME|FILE", help=f"{', '.join(known_configs())}, or a file like theirs")
    parser.add_argument("--for", dest="target", metavar="TARGET", help=compilation.ALLOWED)
    parser.add_argument(
        "--json", action="store_true", help="print JSON: one object with everything, in bytes and seconds"
    )
    take_overrides(parser)
    parser.usage = "%(prog)s --config=NAME|FILE --for=TARGET [--json] [--config.KEY=VALUE ...]"


def run(args: argparse.Namespace) -> int:
    if args.config is None or args.target is None:
        return args.refuse(f"{'--config' if args.config is None else '--for'} is missing")
    target, config = compilation.parse(args.target), complete(load_config(args.config, args.overrides))
    # Plugins would look for devices that are not here, and complain.
    with contextlib.suppress(RuntimeError):  # a backend is already in use
        jax.config.update("jax_platforms", "cpu")
    result = {"config": args.config} | compilation.report(config, target)
    say(json.dumps(result, indent=1) if args.json else to_text(result))
    return 0


def to_text(result: dict[str, Any]) -> str:
    """Returns a report as people read it."""
    memory, bound = result["memory"], result["bound"]
    collectives = [f"{kind} of {size / 1e6:,.1f} MB" for kind, size in result["collectives"].items()]
    return "\n".join(
        [
            f"{result['config']}: batch {result['batch_size']}, {result['dtype']}, on {result['devices']} x "
            f"{result['device_kind']} ({result['target']})",
            f"fits: {memory['needed'] / GIB:,.2f} of {memory['available'] / GIB:,.1f} GiB per device "
            f"({memory['arguments'] / GIB:,.2f} arguments, {memory['temporaries'] / GIB:,.2f} temporaries)",
            f"between devices, per step: {', '.join(collectives) or 'nothing'}",
            f"a step takes at least {1e3 * bound['step']:,.3g} ms: {bound['flops'] / 1e12:,.3g} TFLOP at the peak",
            f"a run takes at least {duration(bound['run'])}: {bound['steps']:,} steps, {bound['evaluations']:,} "
            "evaluations",
        ]
    )


def duration(seconds: float) -> str:
    """Returns a time in words: `2 h 05 min`, `44 min` or `12 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
