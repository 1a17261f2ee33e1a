"""The table of results of README.md and docs/experiments.md, from configs/ and from the runs kept in results/.

    python -m benchmarks.results [--write]
    python -m benchmarks.results --keep RUN --as CONFIG [--data "CIFAR-10 (JPEG copy)"]

Without options it prints the table; --write puts it into both pages, between their markers. --keep copies
configuration and metrics of a finished run to results/runs/CONFIG/seed_N.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from attn_cnn_jax.analysis.bound import bound
from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.cli.summary import TABLE_1
from attn_cnn_jax.config import complete
from attn_cnn_jax.errors import UserError, exits_with_messages
from attn_cnn_jax.runs.environment import read_environments
from attn_cnn_jax.runs.metrics import last_records, read_metrics
from benchmarks.records import DOCS, RESULTS, ROOT, kept_runs, markdown, put, read_config, write

PAGES = (ROOT / "README.md", DOCS / "experiments.md")
# Kept by other modules, in other folders of results/; also the miniature's.
ELSEWHERE = {
    "cifar10_cpu": RESULTS / "fifteen_minutes" / "attention",
    "cifar10_cpu:windows": RESULTS / "fifteen_minutes" / "windows",
}
COLUMNS = ("config", "what it is", "parameters", "FLOPs per image", "paper, CIFAR-10 test", "here")
ABSENT = "–"

# What no run says of a configuration.
ROWS = {
    "digits": "first result: small quadratic network, 8x8 digits",
    "digits_encodings:relative": "the same network, Muon, relative encoding (eq. 8)",
    "digits_encodings:absolute_sinusoidal": "the same, absolute positions (eq. 7)",
    "cifar10_cpu": "small quadratic network for a laptop",
    "cifar10_cpu:windows": "the same with patches that overlap, mirrored borders, a linear schedule",
    "cifar10_cpu_3h": "six layers of 192 channels, three hours",
    "cifar10_cpu_3h:windows": "the same with what `cifar10_cpu:windows` has, two operations per image",
    "cifar10_cpu_3h:resnet": "a ResNet-10 of 32 channels in the same three hours",
    "cifar10_maps16": "three layers of 64 channels, attention over 16x16 pixels",
    "convolution_first:attention": "a ResNet, converted by Theorem 1 after a third of its time",
    "miniature:quadratic": "Table 1 in miniature, one of seven networks trained alike",
    "miniature:resnet": "the same: a ResNet of as many FLOPs, if averages over pixels count",
    "quadratic": "Table 1, Fig. 2 to 4: nine heads, isotropic quadratic encoding",
    "quadratic_generalized": "Fig. 12: Gaussian heads of any shape",
    "quadratic_generalized_pruned": "Fig. 13: continues the run above without its degenerate heads",
    "many_heads": "Fig. 14: sixteen heads",
    "learned_rel": "Table 1, Fig. 5: learned 2-D relative encoding",
    "learned_rel_content": "Table 1, Fig. 6 to 10: with content",
    "resnet18": "Table 1, Fig. 2: the baseline",
}


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into README.md and docs/experiments.md")
    parser.add_argument("--keep", type=Path, metavar="RUN", help="a finished run, to be kept in results/runs")
    here = [name for name in ROWS if name not in ELSEWHERE]
    parser.add_argument("--as", dest="config", choices=here, help="the configuration that it is a run of")
    parser.add_argument("--data", default="digits", help="what to call its data set")
    options = parser.parse_args(argv)
    if options.keep:
        if not options.config:
            parser.error("--keep needs --as CONFIG")
        print(keep(options.keep, options.config, options.data))
    text = table()
    if options.write:
        for page in PAGES:
            put(page, "results", text)
    print(text, end="")
    return 0


def table() -> str:
    """The table in Markdown."""
    return markdown([dict(zip(COLUMNS, line(*row), strict=True)) for row in ROWS.items()], COLUMNS)


def line(name: str, what: str) -> tuple[str, ...]:
    """The cells of a configuration."""
    config = complete(load_config(name))
    paper, runs = TABLE_1[name][0] if name in TABLE_1 else ABSENT, kept_runs(folder(name))
    if name.endswith("_pruned"):  # its network depends on the run that it continues
        return f"`{name}`", what, "fewer", "fewer", paper, reached(runs) if runs else "not run here"
    here, minutes = "not run here", 0 if runs else round(bound(config, "h100").run / 60)
    if minutes:
        here += f"; at least {minutes} minutes of an H100"
    size = f"{count_parameters(config.model):,}", short(count_flops(config.model).linear)
    return f"`{name}`", what, *size, paper, reached(runs) if runs else here


def reached(runs: Sequence[Path]) -> str:
    """What runs of a configuration reached, in words: the median of seeds, their range, epochs."""
    tests = [last_records(run)["test"] for run in runs]
    data = json.loads((runs[0] / "about.json").read_text(encoding="utf-8"))["data"]
    accuracies = [test["accuracy"] for test in tests]
    seeds = [run.name.removeprefix("seed_") for run in runs]
    text = f"{statistics.median(accuracies):.1%} on {data}"
    if len(runs) == 1:
        text += f", seed {seeds[0]}"
    else:
        text += f", median of seeds {seeds[0]} to {seeds[-1]} ({min(accuracies):.1%} to {max(accuracies):.1%})"
    return f"{text}, {tests[0]['epoch']:g} epochs"


def keep(run: Path, name: str, data: str) -> Path:
    """Copies configuration and metrics of a finished run; returns the folder.

    Raises:
      UserError: the run has no test accuracy of its last epoch.
    """
    config, test = read_config(run), last_records(run).get("test")
    if not test or test["epoch"] != config["train"]["num_epochs"]:
        raise UserError(f"{run} is not trained to the end: train it with train.py --workdir={run}")
    place = folder(name) / f"seed_{config['seed']}"
    write(place, config, read_metrics(run / "metrics.jsonl"), data, read_environments(run))
    return place


def folder(name: str) -> Path:
    """Where runs of a configuration are kept."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if name.startswith("miniature:"):
        return RESULTS / name.replace(":", "/")
    return RESULTS / "runs" / name.replace(":", "_")


if __name__ == "__main__":
    sys.exit(main())
