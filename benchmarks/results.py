"""How far training runs have come: a table, and accuracy and learning rate over epochs as a figure.

    python -m benchmarks.results RUN [RUN ...] [--out DIR] [--estimates DIR] [--json FILE]

Accuracies are of the test set, the last one and not the best; pictures a second are the median of the records in
metrics.jsonl. With --estimates, a folder of files CONFIG.json from `attn-cnn compile --json`, the least time of a
step stands beside the measured one, of runs in a directory CONFIG or CONFIG/seed_N. With --out also `learning_rate.png`
and `.svg` there. A run of several seeds counts with their mean.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.curves import names
from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.metrics import read_metrics
from benchmarks.measure import table, write_json

COLUMNS = ("run", "step", "epoch", "training loss", "test accuracy (%)", "pictures/s", "step (ms)", "bound (ms)")


@says_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run directories that train.py left")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to draw the figure")
    parser.add_argument("--estimates", type=Path, metavar="DIR", help="of `attn-cnn compile --json`, CONFIG.json each")
    parser.add_argument("--json", metavar="FILE", help="also write the table there")
    options = parser.parse_args(argv)
    records = {
        name: read_metrics(run / "metrics.jsonl") for name, run in zip(names(options.runs), options.runs, strict=True)
    }
    rows = [
        row(name, of_run) | step_times(run, of_run, options.estimates)
        for run, (name, of_run) in zip(options.runs, records.items(), strict=True)
    ]
    print(table(rows, COLUMNS))
    if options.out:
        print(*style.save(draw(records), options.out, "learning_rate"), sep="\n")
    write_json(options.json, {"benchmark": "results", "rows": rows})
    return 0


def row(name: str, records: list[dict]) -> dict:
    """A run's line; empty where there is no record yet."""
    train = [record for record in records if record["split"] == "train"]
    test = [record for record in records if record["split"] == "test"]
    result = {"run": name}
    if train:
        result |= {"step": train[-1]["step"], "epoch": float(train[-1]["epoch"]), "training loss": train[-1]["loss"]}
        result["pictures/s"] = statistics.median(record["images_per_second"] for record in train)
    if test:
        result["test accuracy (%)"] = 100 * test[-1]["accuracy"]
    return result


def step_times(run: Path, records: list[dict], estimates: Path | None) -> dict[str, float]:
    """The measured and the least time of a training step in milliseconds, as far as they are known."""
    result, config = {}, read_config(run)
    rates = [record["images_per_second"] for record in records if record["split"] == "train"]
    if rates and config is not None:
        result["step (ms)"] = 1000 * config.train.batch_size / statistics.median(rates)
    for name in (run.resolve().name, run.resolve().parent.name):
        if estimates and (estimates / f"{name}.json").is_file():
            result["bound (ms)"] = 1000 * json.loads((estimates / f"{name}.json").read_text())["bound"]["step"]
            break
    return result


def draw(records: dict[str, list[dict]]) -> Figure:
    """Test accuracy, and the learning rate that every record of training had; one colour per run."""
    with style.styled():
        figure = style.create_figure(style.PAGE, 2.3)
        panels = figure.subplots(1, 2)
        for axes, split, key, scale in zip(
            panels, ("test", "train"), ("accuracy", "learning_rate"), (100, 1), strict=True
        ):
            for n, (name, of_run) in enumerate(records.items()):
                points = [(each["epoch"], scale * each[key]) for each in of_run if each["split"] == split]
                axes.plot(*zip(*points, strict=True) if points else ([], []), color=style.look(n).colour, label=name)
            axes.grid(color="0.9", linewidth=0.4)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set(xlabel="epoch", ylabel="test accuracy (%)", title="accuracy")
        panels[1].set(xlabel="epoch", ylabel="learning rate", title="learning rate")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(main())
