"""Ours beside PyTorch on the paper's networks, a row per network: images per second, ratios, memory."""

import argparse
import importlib.util
import itertools
import statistics
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from benchmarks.measure import MIB, OUT_OF_MEMORY, alone, median_ratio, table, write_json
from benchmarks.networks import add_common, alternating, by_itself, configuration

ENCODINGS = {
    "quadratic": {"encoding": "quadratic"},
    "quadratic_generalized": {"encoding": "quadratic_generalized"},
    "learned": {"encoding": "learned"},
    "learned_content": {"encoding": "learned", "content": True},
}
COLUMNS = """N/s: images per second, the median of the turns
x N: how many times as fast ours is, the median of the turns' ratios
MiB N: peak memory of a process with N alone, compiling included, without its imports; of the device on a GPU"""


def documented_parser(doc: str | None, batch_size: int) -> argparse.ArgumentParser:
    """The options that training and inference share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, batch_size, repeats=5)
    parser.add_argument("--encodings", nargs="+", choices=ENCODINGS, default=list(ENCODINGS))
    parser.add_argument("--image_sizes", type=int, nargs="+", default=[32], help="sides in pixels; attention sees half")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of activations")
    parser.add_argument("--compile", action="store_true", help="PyTorch also under torch.compile")
    parser.add_argument("--steps", type=int, default=1, help="per turn")
    return parser


def run(
    benchmark: str, task: str, options: argparse.Namespace, variants: Sequence[tuple[dict, dict]] = (({}, {}),)
) -> None:
    """Measures every encoding and size in all variants; prints the table and writes the JSON file after every row.

    Args:
      task: "training" or "inference".
      variants: of each network, columns that name it and values of `config.model` that differ.
    """
    settings = []
    for encoding, side, (name, model) in itertools.product(options.encodings, options.image_sizes, variants):
        common = {"dtype": options.dtype, "image_shape": (side, side, 3)}
        settings.append(
            ({"encoding": encoding} | name, configuration(options, **common, **ENCODINGS[encoding], **model))
        )
    names = ["ours", "eager", "compiled"][: (3 if options.compile else 2) if torch_computes() else 1]
    rows = []
    for name, config in settings:
        rows.append(name | row(task, names, config, options))
        print(f"measured {len(rows)} of {len(settings)}", flush=True)
        write_json(options.json, {"benchmark": benchmark, "contenders": names, "rows": rows})
    compared = [f"x {name}" for name in names if name != "ours"]
    columns = ["pixels", "batch", *(f"{n}/s" for n in names), *compared, *(f"MiB {n}" for n in names)]
    print(table(rows, [*settings[0][0], *columns]))
    print(COLUMNS)
    if names == ["ours"]:
        print("PyTorch is not installed, or has no GPU where JAX has one: ours alone")


def torch_computes() -> bool:
    """Whether PyTorch is there and computes on the device that JAX does."""
    if importlib.util.find_spec("torch") is None:
        return False
    if jax.default_backend() != "gpu":
        return True
    import torch

    return torch.cuda.is_available()


def row(task: str, names: Sequence[str], config: ConfigDict, options: argparse.Namespace) -> dict:
    """One row: every column but the name's, and what they come from."""
    batch_size = config.train.batch_size
    found = {name: alone(by_itself, task, name, config, 2) for name in names}
    memory = {name: each[1] for name, each in found.items() if each != OUT_OF_MEMORY}
    times = alone(alternating, task, list(memory), config, options.repeats, options.steps)
    if not (together := times != OUT_OF_MEMORY):
        times = {name: found[name][0] for name in memory}
    height, width = (side // config.model.downsample for side in config.model.image_shape[:2])
    result = {"pixels": f"{height}x{width}", "batch": batch_size}
    for name in names:
        fits = name in memory
        result[f"{name}/s"] = batch_size / statistics.median(times[name]) if fits else OUT_OF_MEMORY
        result[f"MiB {name}"] = (memory[name]["peak"] - memory[name]["imports"]) / MIB if fits else OUT_OF_MEMORY
        both = together and {name, "ours"} <= memory.keys()
        result[f"x {name}"] = median_ratio(times[name], times["ours"]) if both else None
    return result | {"seconds": times, "memory": memory}
