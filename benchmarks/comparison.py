"""Ours beside PyTorch on the paper's networks, a row a network: pictures a second, ratios, memory."""

import argparse
import importlib.util
import statistics
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config import create_model
from benchmarks.children import MIB, OUT_OF_MEMORY, add_memory_limit, alone, memory_for_one
from benchmarks.contenders import alternating, by_itself
from benchmarks.measure import median_ratio, table, write_json
from benchmarks.rates import flops_a_picture, matrix_product_rates
from benchmarks.training import add_common, configuration, with_chosen

ENCODINGS = {
    "quadratic": {"encoding": "quadratic"},
    "quadratic_generalized": {"encoding": "quadratic_generalized"},
    "learned": {"encoding": "learned"},
    "learned_content": {"encoding": "learned", "content": True},
}


def documented_parser(doc: str, batch_size: int) -> argparse.ArgumentParser:
    """The options that training and inference share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, batch_size)
    add_memory_limit(parser)
    parser.add_argument("--encodings", nargs="+", choices=ENCODINGS, default=list(ENCODINGS))
    parser.add_argument("--image_sizes", type=int, nargs="+", default=[32], help="sides in pixels; attention sees half")
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of activations")
    parser.add_argument("--compile", action="store_true", help="PyTorch also under torch.compile")
    parser.add_argument("--steps", type=int, default=1, help="a turn")
    return parser


def config_of(options: argparse.Namespace, encoding: str, side: int, **model: Any) -> ConfigDict:
    """The network of one row."""
    common = {"dtype": options.dtype, "image_shape": (side, side, 3), "num_layers": options.num_layers}
    values = common | ENCODINGS[encoding] | model
    return with_chosen(configuration(options), options, {f"model.{key}": value for key, value in values.items()})


def run(
    benchmark: str, task: str, options: argparse.Namespace, variants: Sequence[tuple[dict, dict]] = (({}, {}),)
) -> None:
    """Measures every encoding and size in all variants; prints the table and writes the JSON file, after every row.

    Args:
      task: "training" or "inference".
      variants: of each network, columns that name it and values of `config.model` that differ.
    """
    settings = [
        ({"encoding": encoding} | name, config_of(options, encoding, side, **model))
        for encoding in options.encodings
        for side in options.image_sizes
        for name, model in variants
    ]
    rates, torch_computes = alone(machine, options.dtype)
    names = ["ours", "eager", "compiled"][: (3 if options.compile else 2) if torch_computes else 1]
    rows = []
    for name, config in settings:
        rows.append(name | row(task, names, config, options, max(rates.values())))
        print(f"measured {len(rows)} of {len(settings)}", flush=True)
        write_json(options.json, {"benchmark": benchmark, "matrix_products": rates, "contenders": names, "rows": rows})
    print(table(rows, [*settings[0][0], *columns(names)]))
    print(explanation(names, rates, options))


def machine(dtype: str) -> tuple[dict[str, float], bool]:
    """Rates of matrix products, and whether PyTorch is there and computes on the device that JAX does."""
    torch_computes = importlib.util.find_spec("torch") is not None
    if torch_computes and jax.default_backend() == "gpu":
        import torch

        torch_computes = torch.cuda.is_available()
    return matrix_product_rates(dtype, with_torch=torch_computes), torch_computes


def row(task: str, names: Sequence[str], config: ConfigDict, options: argparse.Namespace, rate: float) -> dict:
    """One row: every column but the name's, and what they come from."""
    limit, batch_size = options.memory_limit or memory_for_one(), config.train.batch_size
    found = {name: alone(by_itself, task, name, config, 2, memory_limit=limit) for name in names}
    memory = {name: each[1] for name, each in found.items() if each != OUT_OF_MEMORY}
    times = alone(alternating, task, list(memory), config, options.repeats, options.steps)
    if not (together := times != OUT_OF_MEMORY):
        times = {name: found[name][0] for name in memory}
    flops = flops_a_picture(config.model, training=task == "training")
    height, width = (side // config.model.downsample for side in config.model.image_shape[:2])
    result = {"pixels": f"{height}x{width}", "batch": batch_size}
    result["implementation"] = implementation_of(config, training=task == "training")
    for name in names:
        fits = name in memory
        result[f"{name}/s"] = batch_size / statistics.median(times[name]) if fits else OUT_OF_MEMORY
        result[f"MiB {name}"] = (memory[name]["peak"] - memory[name]["imports"]) / MIB if fits else OUT_OF_MEMORY
        both = together and {name, "ours"} <= memory.keys()
        result[f"x {name}"] = median_ratio(times[name], times["ours"]) if both else None
    result["share"] = flops * result["ours/s"] / rate if "ours" in memory else None
    return result | {"seconds": times, "memory": memory, "flops_a_picture": flops, "memory_limit_gib": limit}


def implementation_of(config: ConfigDict, *, training: bool) -> str:
    """Which implementation ours takes."""
    network = nnx.eval_shape(lambda: create_model(config.model, rngs=nnx.Rngs(0)))
    taken = network.implementations(config.train.batch_size, tuple(config.model.image_shape), training=training)
    return ", ".join(dict.fromkeys(taken))


def columns(names: Sequence[str]) -> list[str]:
    """Columns of the table after those of a row's name."""
    ratios = [f"x {name}" for name in names if name != "ours"]
    return [
        "pixels",
        "batch",
        "implementation",
        *(f"{n}/s" for n in names),
        *ratios,
        *(f"MiB {n}" for n in names),
        "share",
    ]


def explanation(names: Sequence[str], rates: dict[str, float], options: argparse.Namespace) -> str:
    """What the columns are."""
    best = max(rates, key=rates.get)
    lines = [
        f"N/s: pictures a second, the median of {options.repeats} turns",
        "x N: how many times as fast ours is, the median of the turns' ratios; empty where all do not fit together",
        "MiB N: peak memory of a process with N alone, compiling included, without its imports; of the device on a GPU",
        f"share: of our operations, counted as the dense form's, in {rates[best] / 1e9:,.0f} GFLOP/s, the best matrix "
        f"product here ({best}, {options.dtype}); an implementation that computes fewer can pass 1",
    ]
    alone_ = ["PyTorch is not installed, or has no GPU where JAX has one: ours alone"] if names == ["ours"] else []
    return "\n".join(lines + alone_)
