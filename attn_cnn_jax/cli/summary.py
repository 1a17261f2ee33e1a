"""Count parameters and FLOPs of configurations, beside the paper's Table 1.

Without arguments: the four networks of Table 1, then the other files of configs/. One multiply-add is two FLOPs, and
a count is per picture. The paper counts linear maps and convolutions; the full count adds attention itself.
"""

import argparse
from typing import NamedTuple

from ml_collections import ConfigDict
from tabulate import tabulate

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.arguments import Parser, take_overrides
from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.config import attention_config, complete, resnet_config

EXAMPLE = "quadratic --config.model.num_heads=4"
HEADER = ("config", "parameters", "paper", "FLOPs: linear maps", "paper", "FLOPs: full count")


class Published(NamedTuple):
    """A row of the paper's Table 1."""

    config: ConfigDict
    parameters: str
    flops: str


TABLE_1 = {
    "resnet18": Published(resnet_config(depth=18), "11.2M", "1.1B"),
    "quadratic": Published(attention_config(), "12.1M", "6.2B"),
    "learned_rel": Published(attention_config(encoding="learned"), "12.3M", "6.2B"),
    "learned_rel_content": Published(attention_config(encoding="learned", content=True), "29.5M", "15B"),
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="name or file, such as configs/quadratic.py")
    take_overrides(parser)


def run(args: argparse.Namespace) -> int:
    if args.overrides and not args.configs:
        return args.refuse(f"{args.overrides[0]}: name the CONFIG that it changes")
    configs = {name: load_config(name, args.overrides) for name in args.configs} or default_configs()
    rows = [row(name, config) for name, config in configs.items()]
    align = ["left"] + ["right"] * (len(HEADER) - 1)
    print(tabulate(rows, HEADER, tablefmt="plain", disable_numparse=True, colalign=align))
    return 0


def default_configs() -> dict[str, ConfigDict]:
    """Returns the networks of Table 1, then the other configuration files, by name."""
    table = {name: published.config for name, published in TABLE_1.items()}
    return table | {name: load_config(name) for name in known_configs() if name not in table}


def row(name: str, config: ConfigDict) -> tuple[str, ...]:
    """Returns a line of the table; the paper's columns are filled where the network is one of Table 1."""
    model = complete(config).model
    # As dictionaries: a ConfigDict that is locked equals none that is not.
    published = next((known for known in TABLE_1.values() if known.config.model.to_dict() == model.to_dict()), None)
    flops = count_flops(model)
    return (
        name,
        f"{count_parameters(model):,}",
        published.parameters if published else "",
        short(flops.linear),
        published.flops if published else "",
        short(flops.full),
    )
