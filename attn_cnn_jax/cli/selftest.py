"""Check that this machine computes right: programs of public reports on wrong results, and the included networks.

Each program is computed as XLA compiles it by default, as this package compiles it, and operation by operation; each
result is compared with NumPy in double precision. Exit status 1 if a program as this package compiles it is wrong.
"""

import argparse
import json

import jax

from attn_cnn_jax import compiling
from attn_cnn_jax.cli.arguments import Parser
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.output import say, table
from attn_cnn_jax.runs import environment, known_answers, pretrained, selfcheck
from attn_cnn_jax.runs.load import load_run

EXAMPLE = "--json"
HEADER = ("program", "XLA's defaults", "this package", "one by one")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON: this machine, options and all errors")


def run(args: argparse.Namespace) -> None:
    here = environment.describe()
    answers = [known_answers.measure(program) for program in known_answers.programs()]
    wrong = [answer.name for answer in answers if not answer.is_right]
    networks = {}
    for name in pretrained.names():
        try:
            network = load_run(f"{pretrained.PREFIX}{name}")
            network.logits(selfcheck.noise(8, tuple(network.config.model.image_shape)))
            networks[name] = "right"
        except UserError as error:
            networks[name] = str(error)
            wrong.append(f"pretrained:{name}")
    if args.json:
        say(json.dumps({"environment": here, "programs": [each._asdict() for each in answers], "networks": networks}))
    else:
        say(f"{environment.in_words(here)}\n")
        say(table([(each.name, *map(in_words, each[1:])) for each in answers], HEADER))
        say("\nerrors relative to the largest value")
        say(f"networks: {', '.join(f'{name} {said}' for name, said in networks.items())}")
        say("\n".join(advice(answers)))
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(answers) + len(networks)} computed wrongly as this package compiles: "
            f"{', '.join(wrong)}\nnumbers of this machine cannot be trusted: install another jaxlib, and run this again"
        )


def in_words(error: float) -> str:
    """Returns an error, marked where it is more than rounding."""
    return f"{error:.1e}" if error <= known_answers.TOLERANCE else f"WRONG {error:.1e}"


def advice(answers: list[known_answers.Answer]) -> list[str]:
    """Returns what the results mean for programs of this package, and for those that users compile themselves."""
    lines = []
    options = compiling.options()
    if options:
        listed = ", ".join(f"{name}={value!r}" for name, value in options.items())
        lines.append(f"this package compiles with {listed}: {compiling.reasons()}")
    if any(answer.by_default > known_answers.TOLERANCE for answer in answers):
        flags = " ".join(f"--{name}={value}" for name, value in options.items())
        here = f"set XLA_FLAGS='{flags}' before Python starts, or install another jaxlib" if flags else "see the table"
        lines.append(f"programs that you compile with jax.jit yourself can be wrong here: {here}")
    if line := compiling.changed_flags():
        lines.append(line)
    return lines or [f"all right on {jax.default_backend()}"]
