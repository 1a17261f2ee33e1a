"""Print the paper's Table 1: parameters, FLOPs and test accuracy of configurations and runs, beside the paper's.

Without arguments: the four networks of Table 1, then the other files of configs/. A run directory counts as the network
that it holds, and has its last test accuracy; where heads were pruned, a line says how many of which layers. One
multiply-add is two FLOPs, and a count is per image. The paper counts linear maps and convolutions; the full count
adds attention itself.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.arguments import Parser, run_directories
from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.config import attention_config, complete, resnet_config, with_defaults
from attn_cnn_jax.config.network import heads_by_layer
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import SPECS, source_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.output import say, table
from attn_cnn_jax.runs.checkpoints import saved_config
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.metrics import last_records
from attn_cnn_jax.runs.pretrained import located

EXAMPLE = "quadratic --config.model.num_heads=4"
HEADER = ("config", "test accuracy", "paper", "parameters", "paper", "FLOPs: linear maps", "paper", "FLOPs: full count")
HOW_IT_COMPUTES = ("dtype", "implementation")  # keys of config.model


class Published(NamedTuple):
    """A row of the paper's Table 1."""

    config: ConfigDict
    parameters: str = ""
    flops: str = ""
    accuracy: str = ""


TABLE_1 = {
    "resnet18": Published(resnet_config(depth=18), "11.2M", "1.1B", "93.8%"),
    "quadratic": Published(attention_config(), "12.1M", "6.2B", "93.8%"),
    "learned_rel": Published(attention_config(encoding="learned"), "12.3M", "6.2B", "91.8%"),
    "learned_rel_content": Published(attention_config(encoding="learned", content=True), "29.5M", "15B", "87.1%"),
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG|RUN", help="name, file, run directory or pretrained:NAME")
    parser.take_overrides()


def run(args: argparse.Namespace) -> None:
    if args.overrides and not args.configs:
        args.refuse(f"{args.overrides[0]}: name the CONFIG that it changes")
    found: dict[str, tuple[ConfigDict, str]] = {name: (of.config, "") for name, of in TABLE_1.items()}
    found |= {name: (load_config(name), "") for name in known_configs() if name not in TABLE_1}
    if args.configs:
        found = dict(each for name in args.configs for each in read(name, args.overrides))
    say(table([row(name, *of) for name, of in found.items()], HEADER))
    for name, (config, _) in found.items():
        if text := pruned_in_words(config):
            say(f"{name}: {text}")


def read(name: str, overrides: list[str]) -> list[tuple[str, tuple[ConfigDict, str]]]:
    """Returns name, configuration and last test accuracy: of a configuration, a run or the runs of several seeds."""
    folders = run_directories(name) if located(name).is_dir() else []
    saved = {folder: config for folder in folders if (config := read_config(folder))}
    if not saved:
        config = load_config(name, overrides)
        if config.dataset.name not in SPECS:  # images of the user's own say how large they are
            config = complete(config, sources.read(source_of(config.dataset), config.dataset.data_dir or None).spec)
        return [(name, (config, ""))]
    if overrides:
        raise UserError(f"{overrides[0]}: {name} is a run; overrides change configurations, name one of those")
    return [
        (name if len(saved) == 1 else str(folder), (with_defaults(saved_config(folder) or config), accuracy_of(folder)))
        for folder, config in saved.items()
    ]


def pruned_in_words(config: ConfigDict) -> str:
    """Returns how many heads of which layers were pruned; "" where none were."""
    if not config.start.prune or not config.start.heads:
        return ""
    left, pruned = heads_by_layer(config.model), Counter(layer for layer, _ in config.start.heads)
    layers = [f"{pruned[n]} of {count + pruned[n]} in layer {n}" for n, count in enumerate(left, 1) if pruned[n]]
    return f"{sum(left)} heads, {sum(pruned.values())} pruned: {', '.join(layers)}"


def row(name: str, config: ConfigDict, accuracy: str) -> tuple[str, ...]:
    """Returns a line of the table; the paper's columns are filled where the network is one of Table 1."""
    model = complete(config).model
    same = (known for known in TABLE_1.values() if described(known.config.model) == described(model))
    paper, flops = next(same, Published(config)), count_flops(model)
    counts = f"{count_parameters(model):,}", paper.parameters, short(flops.linear), paper.flops, short(flops.full)
    return (name, accuracy, paper.accuracy, *counts)


def described(model: ConfigDict) -> str:
    """Returns `config.model` but for the type and implementation it computes in; equal texts are one network."""
    # As JSON: a configuration from a file has lists for tuples.
    return json.dumps({key: value for key, value in model.items() if key not in HOW_IT_COMPUTES}, sort_keys=True)


def accuracy_of(workdir: Path) -> str:
    """Returns the last test accuracy of a run; "" before the first."""
    test = last_records(workdir).get("test")
    return f"{test['accuracy']:.2%}" if test else ""
