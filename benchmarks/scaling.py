"""Time and memory of the paper's network as its pictures grow: a training step, attention seeing 16x16 pixels and more.

    python -m benchmarks.scaling [--sides 16 32 64 128] [--forward 224] [--implementations factorised dense]
                                 [--dense_up_to 32] [--num_layers 6] [--batch_size 1] [--repeats 3] [--json FILE]

The network is `quadratic` without dropout of single probabilities, so that all implementations compute the same. Each
size is a process of its own; times are medians. Memory is the peak of the process without what its imports take, once
with and once without compiling and the first step. Exponents, of time and memory as powers of the number of pixels,
are fitted by least squares to the logarithms, of all sizes and, where constant parts count less, of the two largest.
Where memory does not suffice the row says so. --forward: sides at which one layer's forward pass alone is measured.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.errors import says_errors
from benchmarks.children import MIB, OUT_OF_MEMORY, add_memory_limit, alone, memory_for_one
from benchmarks.contenders import by_itself
from benchmarks.measure import table, write_json
from benchmarks.training import add_common, configuration, with_chosen

IMPLEMENTATIONS = ("factorised", "dense", "blocked")
QUANTITIES = {"time": "seconds", "memory": "MiB", "memory of later steps": "MiB later"}
COLUMNS = ("task", "implementation", "pixels", "layers", "batch", "seconds", "MiB", "MiB later", "MiB imports")


@says_errors
def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    rows = []
    for task, config in settings(options):
        rows.append(row(task, config, options))
        print(f"measured {rows[-1]['implementation']} {rows[-1]['pixels']}", flush=True)
    fits = exponents(rows)
    print(table(rows, COLUMNS))
    print(table(fits, list(fits[0])) if fits else "too few sizes for exponents")
    write_json(options.json, {"benchmark": "scaling", "rows": rows, "exponents": fits})
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, batch_size=1)
    add_memory_limit(parser)
    parser.set_defaults(repeats=3)
    parser.add_argument("--sides", type=int, nargs="+", default=[16, 32, 64, 128], help="in pixels that attention sees")
    parser.add_argument("--forward", type=int, nargs="+", default=[224], help="sides of one layer's forward pass")
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, default=["factorised", "dense"])
    parser.add_argument("--dense_up_to", type=int, default=32, metavar="SIDE")
    parser.add_argument("--blocked_up_to", type=int, default=32, metavar="SIDE")
    parser.add_argument("--num_layers", type=int, default=6)
    return parser.parse_args(argv)


def settings(options: argparse.Namespace) -> list[tuple[str, ConfigDict]]:
    """What is measured: "training" or "inference", and of which network."""
    largest = {"dense": options.dense_up_to, "blocked": options.blocked_up_to}
    chosen = [
        ("training", config_of(options, implementation, side, options.num_layers))
        for implementation in options.implementations
        for side in options.sides
        if side <= largest.get(implementation, side)
    ]
    return chosen + [
        ("inference", config_of(options, options.implementations[0], side, 1)) for side in options.forward if side
    ]


def config_of(options: argparse.Namespace, implementation: str, side: int, num_layers: int) -> ConfigDict:
    """A network whose attention sees `side x side` pixels."""
    config = configuration(options)
    sides = (side * config.model.downsample,) * 2
    values = {
        "model.image_shape": (*sides, 3),
        "model.implementation": implementation,
        "model.attention_dropout": 0.0,
        "model.num_layers": num_layers,
    }
    return with_chosen(config, options, values)


def row(task: str, config: ConfigDict, options: argparse.Namespace) -> dict:
    """Median seconds and peak memory of one size."""
    model, limit = config.model, options.memory_limit or memory_for_one()
    side = model.image_shape[0] // model.downsample
    result = {"task": task, "implementation": model.implementation, "pixels": f"{side}x{side}", "side": side}
    result |= {"layers": model.num_layers, "batch": config.train.batch_size, "memory_limit_gib": limit}
    found = alone(by_itself, task, "ours", config, options.repeats, memory_limit=limit)
    if found == OUT_OF_MEMORY:
        return result | {"seconds": OUT_OF_MEMORY}
    seconds, memory = found
    taken = {name: bytes_ and (bytes_ - memory["imports"]) / MIB for name, bytes_ in memory.items()}
    result |= {"seconds": statistics.median(seconds), "MiB": taken["peak"], "MiB later": taken["later"]}
    return result | {"MiB imports": memory["imports"] / MIB, "turns": seconds, "memory": memory}


def exponents(rows: Sequence[dict]) -> list[dict]:
    """By implementation and quantity, the power of the number of pixels, of all sizes and of the two largest.

    What needs no memory beyond that which a process has at hand has no power.
    """
    fits = []
    for implementation in dict.fromkeys(row["implementation"] for row in rows):
        for name, column in QUANTITIES.items():
            points = [
                (each["side"] ** 2, each[column])
                for each in sorted(rows, key=lambda each: each["side"])
                if (each["implementation"], each["task"]) == (implementation, "training")
                and isinstance(each.get(column), float)
                and each[column] > 0
            ]
            if len(points) > 1:
                sizes = f"{points[0][0]} to {points[-1][0]} pixels"
                fit = {
                    "implementation": implementation,
                    "quantity": name,
                    "sizes": sizes,
                    "exponent": exponent(*zip(*points, strict=True)),
                }
                fits.append(fit | {"of the two largest": exponent(*zip(*points[-2:], strict=True))})
    return fits


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The `p` of `values = c sizes^p`: least squares in logarithms."""
    return float(np.polynomial.Polynomial.fit(np.log(sizes), np.log(values), 1).convert().coef[1])


if __name__ == "__main__":
    sys.exit(main())
