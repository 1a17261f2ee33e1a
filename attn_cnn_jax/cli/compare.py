"""Compare runs: a table, and a figure of their accuracy and loss over epochs.

Runs of one configuration share a line, with mean and standard deviation (over n - 1) of the last test accuracy and
loss over their seeds. Each seed counts once. Where metrics go, where a prepared data set is and how it is read may
differ. Where a class has half as many test images again as another, the mean over classes stands beside the accuracy.
FLOPs are per image, of linear maps and convolutions as the paper counts them. The training time is that of the training
steps alone, without compilation and evaluation, from the rates in metrics.jsonl.
"""

import argparse
import datetime
import itertools
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attn_cnn_jax.analysis.figures import curves, style
from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.arguments import Parser, as_path
from attn_cnn_jax.config.base import flatten, with_defaults
from attn_cnn_jax.output import say, table, with_deviation
from attn_cnn_jax.runs.directory import MAY_CHANGE, read_config
from attn_cnn_jax.runs.environment import in_words, of_step, read_environments
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import doubt, read_metrics
from attn_cnn_jax.runs.pretrained import FOLDER, PREFIX

EXAMPLE = "runs/digits pretrained:digits --out=comparison"
# Keys ignored when runs are grouped into one row. Another `dataset.path` is another set of images.
NOT_COMPARED = {"seed", *MAY_CHANGE} - {"dataset.path"}
HEADER = ("run", "seeds", "epoch", "test accuracy", "test loss", "parameters", "FLOPs", "training time")


class Outcome(NamedTuple):
    """The result of one run; runs of one `key`, a configuration, are pooled."""

    key: str
    workdir: Path
    seed: int
    name: str  # as the user calls it
    model: ConfigDict  # `config.model` of its newest checkpoint, in which pruned heads are missing
    test: dict | None  # the last test record; None before the first
    seconds: float | None  # duration of the training steps; None where metrics.jsonl does not tell


def add_arguments(parser: Parser) -> None:
    parser.share("runs")
    which = "also draw the curves, seeds as mean and deviation, as curves.png and .svg there"
    parser.add_argument("--out", type=as_path, metavar="DIR", help=which)


def run(args: argparse.Namespace) -> None:
    groups: dict[str, dict[int, Outcome]] = {}  # by key and seed
    for outcome in map(read_outcome, itertools.chain(*args.runs)):
        of_seeds = groups.setdefault(outcome.key, {})
        kept = of_seeds.setdefault(outcome.seed, outcome)
        if kept is not outcome:
            less, kept = sorted((outcome, kept), key=lambda each: (each.test or {"step": 0})["step"])
            of_seeds[kept.seed] = kept  # the longest
            say(f"{less.name} has the same seed {less.seed} as {kept.name}: counted once", sys.stderr)
    counted = [list(of_seeds.values()) for of_seeds in groups.values()]
    unequal = any("balanced" in (outcome.test or {}) for outcomes in counted for outcome in outcomes)
    rows = [row(outcomes, by_class=unequal) for outcomes in counted]
    say(table(rows, (*HEADER[:4], *(["mean of classes"] if unequal else []), *HEADER[4:])))
    for line in machines(counted):
        say(line)
    for outcome in itertools.chain(*counted):
        if text := doubt(outcome.workdir):
            say(f"{outcome.workdir}: {text}")
    if args.out:
        figure = curves.draw([[outcome.workdir for outcome in outcomes] for outcomes in counted])
        say("\n".join(map(str, ["", *style.save(figure, args.out, "curves")])))


def machines(counted: list[list[Outcome]]) -> list[str]:
    """Returns a line per machine or version that made test records, where these are not all of one."""
    places: dict[str, list[str]] = {}
    for outcome in itertools.chain(*counted):
        made_by = of_step(read_environments(outcome.workdir), outcome.test["step"]) if outcome.test else None
        places.setdefault(in_words(made_by or {}), []).append(str(outcome.workdir))
    return [f"{', '.join(runs)}: measured on {words}" for words, runs in places.items()] if len(places) > 1 else []


def read_outcome(workdir: Path) -> Outcome:
    run = load_run(workdir)
    config = with_defaults(read_config(workdir) or run.config)
    values = {key: value for key, value in flatten(config).items() if key not in NOT_COMPARED}
    records = read_metrics(workdir / "metrics.jsonl")
    test = next((record for record in reversed(records) if record["split"] == "test"), None)
    seconds = training_seconds(records, config.train.batch_size)
    data = sorted((split, sorted(entry.items())) for split, entry in (run.data or {}).items())
    key = repr((sorted(values.items()), data))
    name = f"{PREFIX}{workdir.name}" if workdir.is_relative_to(FOLDER) else str(workdir)
    return Outcome(key, workdir, config.seed, name, run.config.model, test, seconds)


def training_seconds(records: list[dict], batch_size: int) -> float | None:
    """Returns how long the training steps took, from the rate of each training record; None where there is none."""
    total, before = 0.0, 0
    for record in records:
        if record["split"] == "train" and "images_per_second" in record:
            total += (record["step"] - before) * batch_size / record["images_per_second"]
            before = record["step"]
    return total or None


def row(outcomes: list[Outcome], *, by_class: bool) -> tuple[str, ...]:
    """Returns a line of the table, of one run or of several seeds of one configuration.

    With `by_class` also the mean over classes of the share of their test images that is right.
    """
    tests = [outcome.test for outcome in outcomes if outcome.test]
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    first, *others = outcomes
    return (
        f"{first.name} ... {others[-1].workdir.name}" if others else first.name,
        ", ".join(str(outcome.seed) for outcome in outcomes),
        f"{min(record['epoch'] for record in tests):g}" if tests else "",
        with_deviation([record["accuracy"] for record in tests], "{:.2%}"),
        *([with_deviation([r["balanced"] for r in tests if "balanced" in r], "{:.2%}")] if by_class else []),
        with_deviation([record["loss"] for record in tests if "loss" in record], "{:.4f}"),
        f"{count_parameters(first.model):,}",
        short(count_flops(first.model).linear),
        str(datetime.timedelta(seconds=round(statistics.mean(seconds)))) if seconds else "",
    )
