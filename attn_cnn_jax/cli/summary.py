"""Print the paper's Table 1: parameters, FLOPs and test accuracy of configurations and runs, beside the paper's.

Without arguments: the four networks of Table 1, then the other files of configs/, but that for images of one's own. A
run directory counts as the network that it holds, and has its last test accuracy; where heads were pruned, a line says
how many of which layers, and one says, where attention does not depend on the image, how many heads could replace those
of each layer (`heads`). One multiply-add is two FLOPs, and a count is per image. The paper counts linear maps and
convolutions; the full count adds attention itself.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from ml_collections import ConfigDict

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.analysis.heads import effective_heads, effective_text, patterns_of
from attn_cnn_jax.cli.arguments import Parser, run_directories
from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.config import complete, with_defaults
from attn_cnn_jax.config.network import heads_by_layer
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import SPECS, source_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.output import say, table
from attn_cnn_jax.runs.checkpoints import saved_config
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import doubt, last_records
from attn_cnn_jax.runs.pretrained import located

EXAMPLE = "quadratic --config.model.num_heads=4"
HEADER = ("config", "test accuracy", "paper", "parameters", "paper", "FLOPs: linear maps", "paper", "FLOPs: full count")
HOW_IT_COMPUTES = ("dtype", "implementation")  # keys of config.model


TABLE_1 = {  # the paper's: accuracy, parameters and FLOPs, by the name of the configuration
    "resnet18": ("93.8%", "11.2M", "1.1B"),
    "quadratic": ("93.8%", "12.1M", "6.2B"),
    "learned_rel": ("91.8%", "12.3M", "6.2B"),
    "learned_rel_content": ("87.1%", "29.5M", "15B"),
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG|RUN", help="name, file, run directory or pretrained:NAME")
    parser.take_overrides()


def run(args: argparse.Namespace) -> None:
    if args.overrides and not args.configs:
        args.refuse(f"{args.overrides[0]}: name the CONFIG that it changes")
    if args.configs:
        configs = dict(each for name in args.configs for each in read(name, args.overrides))
    else:
        known = {name: load_config(name) for name in dict.fromkeys((*TABLE_1, *known_configs()))}
        configs = {name: (config, "", None) for name, config in known.items() if config.dataset.name in SPECS}
    papers = {described(load_config(name).model): published for name, published in TABLE_1.items()}
    rows = [row(name, config, accuracy, papers) for name, (config, accuracy, _) in configs.items()]
    say(table(rows, HEADER))
    for name, (config, _, folder) in configs.items():
        if text := pruned_in_words(config):
            say(f"{name}: {text}")
        for text in effective_in_words(folder, config) if folder else ():
            say(f"{name}: {text}")
    for name in args.configs:
        for folder in run_directories(name) if located(name).is_dir() else ():
            if text := doubt(folder):
                say(f"{folder if located(name) != folder else name}: {text}")


def read(name: str, overrides: list[str]) -> list[tuple[str, tuple[ConfigDict, str, Path | None]]]:
    """Returns name, configuration, last test accuracy and folder: of a configuration, a run or the runs of seeds."""
    folders = run_directories(name) if located(name).is_dir() else []
    saved = {folder: config for folder in folders if (config := read_config(folder))}
    if not saved:
        config = load_config(name, overrides)
        if config.dataset.name not in SPECS:  # images of the user's own say how large they are
            source = source_of(complete(config).dataset)
            config = complete(config, sources.read(source, config.dataset.data_dir or None).spec)
        return [(name, (config, "", None))]
    if overrides:
        raise UserError(f"{overrides[0]}: {name} is a run; overrides change configurations, name one of those")
    names = {folder: name if len(saved) == 1 else str(folder) for folder in saved}
    return [
        (names[folder], (with_defaults(saved_config(folder) or config), accuracy_of(folder), folder))
        for folder, config in saved.items()
    ]


def pruned_in_words(config: ConfigDict) -> str:
    """Returns how many heads of which layers were pruned; "" where none were."""
    if not config.start.prune or not config.start.heads:
        return ""
    left, pruned = heads_by_layer(config.model), Counter(layer for layer, _ in config.start.heads)
    layers = [f"{pruned[n]} of {count + pruned[n]} in layer {n}" for n, count in enumerate(left, 1) if pruned[n]]
    return f"{sum(left)} heads, {sum(pruned.values())} pruned: {', '.join(layers)}"


def effective_in_words(folder: Path, config: ConfigDict) -> list[str]:
    """Returns the effective heads of each layer of a run whose attention is of positions alone, else nothing."""
    if config.model.name != "attention":
        return []
    try:
        run = load_run(folder)
    except UserError:  # no checkpoint yet, or an encoding that is not loaded: the table says what there is
        return []
    if run.model.depends_on_content:
        return []
    attention = run.attention()
    counts = effective_heads(run, [patterns_of(layer[None]) for layer in attention])
    texts = (effective_text(of_layer, len(layer)) for of_layer, layer in zip(counts, attention, strict=True))
    return [f"layer {n}, {text}" for n, text in enumerate(texts, start=1)]


def row(name: str, config: ConfigDict, accuracy: str, papers: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns a line of the table; the paper's columns are filled where the network is one of Table 1."""
    model = complete(config).model
    published = papers.get(described(model), ("", "", ""))
    flops = count_flops(model)
    ours = accuracy, f"{count_parameters(model):,}", short(flops.linear)
    return (name, *(cell for pair in zip(ours, published, strict=True) for cell in pair), short(flops.full))


def described(model: ConfigDict) -> str:
    """Returns `config.model` but for the type and implementation it computes in; equal texts are one network."""
    # As JSON: a configuration from a file has lists for tuples.
    return json.dumps({key: value for key, value in model.items() if key not in HOW_IT_COMPUTES}, sort_keys=True)


def accuracy_of(workdir: Path) -> str:
    """Returns the last test accuracy of a run; "" before the first."""
    test = last_records(workdir).get("test")
    return f"{test['accuracy']:.2%}" if test else ""
