"""What benchmarks that train runs share: their options, files that are kept of a run, tables inside a page."""

import argparse
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.cli.arguments import integers
from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.directory import from_json, read_config, to_json
from attn_cnn_jax.runs.metrics import read_metrics

DATA = "CIFAR-10 (JPEG copy)"  # the set of the runs that the documentation shows


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options of a module that either trains, `--out`, or shows what was kept, `--show`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", metavar="DIR", help="where CIFAR-10 is prepared")
    parser.add_argument("--out", type=Path, metavar="OUT", help="of run directories")
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2], metavar="N-N", help="0-2")
    parser.add_argument("--show", type=Path, metavar="DIR", help="print what was kept there")
    parser.add_argument("--write", action="store_true", help="put it into the documentation")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options given: one of `--out` and `--show`."""
    options = parser.parse_args(argv)
    if bool(options.show) == bool(options.out):
        parser.error("give --out=OUT, or --show=DIR")
    return options


def write_run(place: Path, config: ConfigDict, records: Sequence[dict], data: str | None = None) -> None:
    """Writes configuration and records of a run, and what its data set is called.

    The folder where this machine has its data is left out.
    """
    config.dataset.data_dir = ""
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(place / "config.json", to_json(config))
    write_atomically(place / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    if data:
        write_atomically(place / "about.json", json.dumps({"data": data}) + "\n")


def keep(run: Path, place: Path) -> ConfigDict:
    """Copies configuration and metrics of a run on CIFAR-10; returns the configuration."""
    config = read_config(run)
    assert config is not None
    write_run(place, config, read_metrics(run / "metrics.jsonl"), DATA)
    return config


def training_of(config: ConfigDict) -> dict[str, Any]:
    """Returns what decides what a run computes, as plain values: all of its configuration but data, files, checkpoints.

    A kept run and today's configuration have the same one: a recipe that changes needs another run.
    """
    parts = ("model", "optimizer", "train", "augment", "start", "seed")
    values = with_defaults(from_json(to_json(config))).to_dict()
    return {part: values[part] for part in parts}


def minutes(records: Sequence[dict]) -> float:
    """Returns how long the steps of a run on CIFAR-10 took, from the rates that its records have."""
    train = [record for record in records if record["split"] == "train"]
    pictures = 50_000 * train[-1]["epoch"]
    return pictures / statistics.median(record["images_per_second"] for record in train) / 60


def with_deviation(values: Sequence[float]) -> str:
    """Returns mean and standard deviation, to a tenth."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Returns a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *([row.get(column, "") for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def marked(name: str) -> re.Pattern:
    """Returns the pattern of what stands between the markers `<!-- name -->` and `<!-- end of name -->`."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)


def put(page: Path, name: str, text: str) -> None:
    """Puts a text into a page, between its markers."""
    write_atomically(page, marked(name).sub(lambda _: text, page.read_text(encoding="utf-8")))
