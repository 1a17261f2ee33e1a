"""Compile training for GPUs or TPUs that are not here: does it fit, how long should it take?

XLA compiles the real training steps and evaluation of a configuration for the devices that --for names: on any
machine, without them, in one to five minutes for GPUs and two to thirty for TPUs. Times are estimated from the compiled
program and not measured: each operation takes the longer of its memory traffic and its arithmetic, one after another.
--config.start is left out, and --config.augment.half_size_until: every step counts as one on whole pictures.
"""

import argparse
import contextlib
import json
from typing import Any

import jax
from tabulate import tabulate

from attn_cnn_jax.cli.arguments import Parser, take_overrides
from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.compilation import report
from attn_cnn_jax.compilation.targets import ALLOWED, parse
from attn_cnn_jax.config import complete

EXAMPLE = "--config=quadratic --for=h100 --config.model.dtype=bfloat16"
GIB = 2**30


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--config", metavar="NAME|FILE", help=f"{', '.join(known_configs())}, or a file like theirs")
    parser.add_argument("--for", dest="target", metavar="TARGET", help=ALLOWED)
    parser.add_argument(
        "--json", action="store_true", help="print JSON: one object with everything, in bytes and seconds"
    )
    take_overrides(parser)
    parser.usage = "%(prog)s --config=NAME|FILE --for=TARGET [--json] [--config.KEY=VALUE ...]"


def run(args: argparse.Namespace) -> int:
    if args.config is None or args.target is None:
        return args.refuse(f"{'--config' if args.config is None else '--for'} is missing")
    target, config = parse(args.target), complete(load_config(args.config, args.overrides))
    # Plugins would look for devices that are not here, and complain.
    with contextlib.suppress(RuntimeError):  # a backend is already in use
        jax.config.update("jax_platforms", "cpu")
    result = {"config": args.config} | report.create(config, target)
    print(json.dumps(result, indent=1) if args.json else to_text(result))
    return 0


def to_text(result: dict[str, Any]) -> str:
    """Returns a report as people read it."""
    memory, step, evaluation = result["memory"], result["step"], result["evaluation"]
    training, evaluating = result["attention"] or ("", "")
    used = training if training == evaluating else f"{training}, {evaluating} in evaluation"
    collectives = [f"{kind} of {size / 1e6:,.1f} MB" for kind, size in step["collectives"].items()]
    lines = [
        f"{result['config']}: batch {result['batch_size']}, {result['dtype']}, on {result['devices']} x "
        f"{result['device_kind']} ({result['target']})",
        f"fits: {memory['needed'] / GIB:,.2f} of {memory['available'] / GIB:,.1f} GiB per device "
        f"({memory['arguments'] / GIB:,.2f} arguments, {memory['temporaries'] / GIB:,.2f} temporaries)",
        *([f"attention implementation: {used}"] if used else []),
        f"between devices, per step: {', '.join(collectives) or 'nothing'}",
        f"estimate of a step: {1e3 * step['seconds']:,.2f} ms ({step['flops'] / 1e12:,.2f} TFLOP in products, "
        f"{step['bytes'] / 1e9:,.1f} GB read and written, per device)",
        f"estimate of a run: {duration(result['run_seconds'])} for {result['steps']:,} steps and "
        f"{result['evaluations']:,} evaluations of {1e3 * evaluation['seconds']:,.0f} ms",
        *(f"left out: config.{key}={value}" for key, value in result["left_out"].items()),
    ]
    kinds = [
        (kind, part["count"], f"{1e3 * part['seconds']:.2f}", f"{part['seconds'] / step['seconds']:.0%}")
        for kind, part in step["by_kind"].items()
        if part["count"]
    ]
    largest = [(row["operation"], row["count"], f"{1e3 * row['seconds']:.2f}") for row in step["largest"]]
    look: dict[str, Any] = {"tablefmt": "plain", "disable_numparse": True}
    right = ("right", "right", "right")
    tables = [
        tabulate(kinds, ("a step is spent on", "operations", "ms", "share"), colalign=("left", *right), **look),
        tabulate(largest, ("largest operations", "times", "ms"), colalign=("left", *right[1:]), **look),
    ]
    last = "Estimated from the compiled program, without launches, caches and overlap; not measured."
    return "\n\n".join(["\n".join(lines), *tables, last])


def duration(seconds: float) -> str:
    """Returns a time in words: `2 h 05 min`, `44 min` or `12 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
