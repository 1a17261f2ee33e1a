"""Time and memory of the paper's network as its images grow: a training step, attention over 16x16 pixels and more.

    python -m benchmarks.scaling [--sides 16 32 64 128] [--forward 224] [--implementations factorised dense]
                                 [--dense_up_to 32] [--num_layers 6] [--batch_size 1] [--repeats 3] [--json FILE]

The network is `quadratic` without dropout of attention, so that all implementations compute the same. Each size is a
process of its own; times are medians, memory is the peak of the process without what its imports take. Exponents, time
and memory as powers of the number of pixels, are least squares in logarithms. Sizes that do not fit into memory say so.
--forward: sides at which one layer's forward pass alone is measured.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.errors import exits_with_messages
from benchmarks.measure import MIB, OUT_OF_MEMORY, alone, table, write_json
from benchmarks.networks import add_common, by_itself, configuration

QUANTITIES = {"time": "seconds", "memory": "MiB"}
COLUMNS = ("task", "implementation", "pixels", "layers", "batch", "seconds", "MiB", "MiB imports")


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, batch_size=1, repeats=3)
    names = ("factorised", "dense")
    parser.add_argument("--sides", type=int, nargs="+", default=[16, 32, 64, 128], help="in pixels that attention sees")
    parser.add_argument("--forward", type=int, nargs="+", default=[224], help="sides of one layer's forward pass")
    parser.add_argument("--implementations", nargs="+", choices=names, default=list(names))
    parser.add_argument("--dense_up_to", type=int, default=32, metavar="SIDE")
    options = parser.parse_args(argv)
    rows = []
    for task, config in settings(options):
        rows.append(row(task, config, options.repeats))
        print(f"measured {rows[-1]['implementation']} {rows[-1]['pixels']}", flush=True)
    fits = exponents(rows)
    print(table(rows, COLUMNS))
    print(table(fits, list(fits[0])) if fits else "too few sizes for exponents")
    write_json(options.json, {"benchmark": "scaling", "rows": rows, "exponents": fits})
    return 0


def settings(options: argparse.Namespace) -> list[tuple[str, ConfigDict]]:
    """What is measured: "training" or "inference", and of which network."""
    chosen = [
        ("training", implementation, side, {})
        for implementation in options.implementations
        for side in options.sides
        if side <= options.dense_up_to or implementation != "dense"
    ]
    chosen += [("inference", options.implementations[0], side, {"num_layers": 1}) for side in options.forward if side]
    downsample = configuration(options).model.downsample

    def configured(implementation, side, model):
        common = {"attention_dropout": 0.0, "image_shape": (side * downsample, side * downsample, 3)}
        return configuration(options, implementation=implementation, **common, **model)

    return [(task, configured(*of_network)) for task, *of_network in chosen]


def row(task: str, config: ConfigDict, repeats: int) -> dict:
    """Median seconds and peak memory of one size."""
    model = config.model
    side = model.image_shape[0] // model.downsample
    result = {"task": task, "implementation": model.implementation, "pixels": f"{side}x{side}", "side": side}
    result |= {"layers": model.num_layers, "batch": config.train.batch_size}
    found = alone(by_itself, task, "ours", config, repeats)
    if found == OUT_OF_MEMORY:
        return result | {"seconds": OUT_OF_MEMORY}
    seconds, memory = found
    result |= {"seconds": statistics.median(seconds), "MiB": (memory["peak"] - memory["imports"]) / MIB}
    return result | {"MiB imports": memory["imports"] / MIB, "turns": seconds}


def exponents(rows: Sequence[dict]) -> list[dict]:
    """By implementation and quantity, the power of the number of pixels, of all sizes and of the two largest."""
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
                fit = {"implementation": implementation, "quantity": name}
                fit |= {"sizes": f"{points[0][0]} to {points[-1][0]} pixels", "exponent": exponent(points)}
                fits.append(fit | {"of the two largest": exponent(points[-2:])})
    return fits


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The `p` of `value = c size^p`."""
    return float(np.polyfit(*np.log(points).T, 1)[0])


if __name__ == "__main__":
    sys.exit(main())
