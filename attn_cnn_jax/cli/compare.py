"""Compare runs: a table, and a figure of their accuracy and loss over epochs.

Runs of one configuration share a line, with mean and standard deviation (over n - 1) of the last test accuracy and
loss; their seeds may differ, and where metrics go, where a prepared data set lies and how it is read. FLOPs are per
picture, of linear maps and convolutions as the paper counts them. The training time is that of the training steps
alone, without compilation and evaluation, from the rates in metrics.jsonl.
"""

import argparse
import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict
from tabulate import tabulate

from attn_cnn_jax.analysis.figures import curves, style
from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.arguments import add_runs, as_path
from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.runs.directory import MAY_CHANGE, flatten, read_config
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics

EXAMPLE = "runs/digits runs/imported --out=comparison"
# In these runs of one line may differ. Another `dataset.path` is another set of pictures.
NOT_COMPARED = {"seed", *MAY_CHANGE} - {"dataset.path"}
HEADER = ("run", "runs", "epoch", "test accuracy", "test loss", "parameters", "FLOPs", "training time")


class Outcome(NamedTuple):
    """What one run came to.

    Attributes:
      workdir: the run directory.
      model: `config.model` of its newest checkpoint, in which pruned heads are missing.
      tests: the last test record; empty before the first.
      seconds: duration of the training steps; None where metrics.jsonl does not tell.
    """

    workdir: Path
    model: ConfigDict
    tests: list[dict]
    seconds: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--out",
        type=as_path,
        metavar="DIR",
        help="also draw the curves, seeds as mean and deviation, as curves.png and .svg there",
    )


def run(args: argparse.Namespace) -> int:
    groups: dict[str, list[Outcome]] = {}
    for workdir in args.runs:
        key, outcome = read_outcome(workdir)
        groups.setdefault(key, []).append(outcome)
    align = ["left"] + ["right"] * (len(HEADER) - 1)
    rows = [row(outcomes) for outcomes in groups.values()]
    print(tabulate(rows, HEADER, tablefmt="plain", disable_numparse=True, colalign=align))
    if args.out:
        figure = curves.draw([[outcome.workdir for outcome in outcomes] for outcomes in groups.values()])
        print("", *style.save(figure, args.out, "curves"), sep="\n")
    return 0


def read_outcome(workdir: Path) -> tuple[str, Outcome]:
    """Returns what a run came to, after a text that is the same for runs of one line.

    Raises:
      UserError: if there is no such run, or it has no checkpoint yet.
    """
    model = load_run(workdir).config.model
    config = with_defaults(read_config(workdir) or ConfigDict())
    values = {key: value for key, value in flatten(config).items() if key not in NOT_COMPARED}
    records = read_metrics(workdir / "metrics.jsonl")
    tests = [record for record in records if record["split"] == "test"]
    tests = [record for record in tests if record["step"] == tests[-1]["step"]]
    seconds = training_seconds(records, config.train.batch_size)
    return repr(sorted(values.items())), Outcome(workdir, model, tests, seconds)


def training_seconds(records: list[dict], batch_size: int) -> float | None:
    """Returns how long the training steps took, from the rate of each training record; None where there is none."""
    total, before = 0.0, 0
    for record in records:
        if record["split"] == "train" and "images_per_second" in record:
            total += (record["step"] - before) * batch_size / record["images_per_second"]
            before = record["step"]
    return total or None


def row(outcomes: list[Outcome]) -> tuple[str, ...]:
    """Returns a line of the table, of one run or of several of one configuration."""
    tests = [record for outcome in outcomes for record in outcome.tests]
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    names = [str(outcome.workdir) for outcome in outcomes]
    model = outcomes[0].model
    return (
        names[0] if len(names) == 1 else f"{names[0]} ... {outcomes[-1].workdir.name}",
        str(len(outcomes)),
        f"{min(record['epoch'] for record in tests):g}" if tests else "",
        with_deviation([record["accuracy"] for record in tests], "{:.2%}"),
        with_deviation([record["loss"] for record in tests if "loss" in record], "{:.4f}"),
        f"{count_parameters(model):,}",
        short(count_flops(model).linear),
        str(datetime.timedelta(seconds=round(np.mean(seconds)))) if seconds else "",
    )


def with_deviation(values: list[float], form: str) -> str:
    """Returns `mean ± standard deviation` of several values, one value as it is, and no text for none."""
    mean = form.format(np.mean(values)) if values else ""
    return f"{mean} ± {form.format(np.std(values, ddof=1))}" if len(values) > 1 else mean
