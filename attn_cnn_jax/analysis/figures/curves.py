"""Accuracy and loss over epochs, several runs in one plot (Fig. 2)."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.metrics import read_metrics

LINES: dict[str, Literal["-", ":", "--"]] = {"test": "-", "validation": ":", "train": "--"}


def draw(workdirs: Sequence[Path | Sequence[Path]], labels: Sequence[str] = ()) -> Figure:
    """Returns the curves of runs, finished or not; a colour per run, a kind of line per split.

    Of several seeds their mean, with a band of one standard deviation to either side.

    Args:
      workdirs: run directories; several in one entry are seeds of one configuration, and share a curve.
      labels: what to call the entries; by default the names of their folders.

    Raises:
      UserError: if a run has no metrics yet.
    """
    with style.styled():
        figure = style.create_figure(style.PAGE, 2.3)
        accuracy, loss = figure.subplots(1, 2)
        splits, markers = set(), []
        groups = [[entry] if isinstance(entry, Path) else list(entry) for entry in workdirs]
        for n, group in enumerate(groups):
            records = read_group(group)
            for split in LINES:
                of_split = [record for record in records if record["split"] == split]
                if not of_split:
                    continue
                splits.add(split)
                means = mean_records(of_split)
                draw_mean(accuracy, means, "accuracy", split, n, scale=100)
                draw_mean(loss, means, "loss", split, n)
            markers.append(Line2D([], [], color=style.look(n).colour))
        accuracy.set(xlabel="epoch", ylabel="accuracy (%)", title="accuracy")
        loss.set(xlabel="epoch", ylabel="cross-entropy (nats)", title="loss")
        for axes in (accuracy, loss):
            style.decorate(axes)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        kinds = [split for split in LINES if split in splits]
        handles = markers + [Line2D([], [], color="0.3", linestyle=LINES[split]) for split in kinds]
        called = [
            f"{label} ({len(group)} seeds)" if group[1:] else label
            for label, group in zip(labels or names([group[0] for group in groups]), groups, strict=True)
        ]
        add_legend(figure, handles, called + kinds)
    return figure


def mean_records(records: list[dict]) -> list[dict]:
    """Returns one record per split and step: as it is, or the mean over seeds (`mean_record`)."""
    by_moment = itertools.groupby(records, lambda record: (record["split"], record["step"]))
    return [mean_record(list(group)) for _, group in by_moment]


def mean_record(records: Sequence[dict]) -> dict:
    """Returns the records of one moment as one: the record itself, or the mean of what all runs have measured.

    A mean has in addition the number of `seeds`, and `loss_std` and `accuracy_std`, the standard deviation of a
    sample (over n - 1).
    """
    first, *others = records
    if not others:
        return first
    shared = [name for name in first if all(name in record for record in others)]
    numbers = [name for name in shared if name not in ("step", "epoch", "split")]
    mean = {name: float(np.mean([record[name] for record in records])) for name in numbers}
    measured = [name for name in ("loss", "accuracy") if name in numbers]  # imported weights come without a loss
    std = {f"{name}_std": float(np.std([record[name] for record in records], ddof=1)) for name in measured}
    where = {name: first[name] for name in ("step", "epoch", "split")}
    return where | {"seeds": len(records)} | mean | std


def draw_mean(axes: Axes, means: list[dict], name: str, split: str, n: int, scale: float = 1.0) -> None:
    """Draws one number of the records of a split over epochs, with its deviation, in the colour of run `n`."""
    known = [record for record in means if name in record]  # imported weights come without a loss
    epochs = np.array([record["epoch"] for record in known])
    values = scale * np.array([record[name] for record in known])
    colour = style.look(n).colour
    width, marker = 0.7 if split == "train" else 1.1, "." if len(known) == 1 else ""
    axes.plot(epochs, values, LINES[split], color=colour, linewidth=width, marker=marker, gid=f"{n} {split}")
    if any("seeds" in record for record in known):
        std = scale * np.array([record.get(f"{name}_std", 0.0) for record in known])
        axes.fill_between(
            epochs, values - std, values + std, color=colour, alpha=0.2, linewidth=0, gid=f"{n} {split} band"
        )


def add_legend(figure: Figure, handles: list[Line2D], called: list[str]) -> None:
    """Adds a legend below the plots, with as many columns as fit beside each other, up to four."""
    for columns in (4, 3, 2, 1):
        legend = figure.legend(handles, called, loc="outside lower center", ncols=columns, frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def read_group(workdirs: list[Path]) -> list[dict]:
    """Returns the records of runs that differ in their seed alone, those of one moment side by side.

    Raises:
      UserError: if a run has no metrics yet.
    """
    records = []
    for workdir in workdirs:
        found = read_metrics(workdir / "metrics.jsonl")
        if not found:
            raise UserError(f"{workdir} has no metrics yet: train it with train.py --workdir={workdir}")
        records += found
    return sorted(records, key=lambda record: (record["split"], record["step"])) if workdirs[1:] else records


def names(workdirs: list[Path]) -> list[str]:
    """Returns the runs' folder names, with as many parents as make them differ."""
    paths = [path.absolute() for path in workdirs]
    for depth in range(1, max(len(path.parts) for path in paths)):
        found = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(found)) == len(found):
            break
    # A legend leaves out what begins with an underscore.
    return [f"./{name}" if name.startswith("_") else name for name in found]
