"""Accuracy and loss over epochs, several runs in one plot (Fig. 2)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

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
    """Returns the curves of runs, finished or not; a colour per run, with marks from the tenth on, a line per split.

    Several run directories in one entry are seeds of one configuration, and share a curve: their mean, with a band of
    one standard deviation to either side. Labels of the entries are by default the names of their folders. UserError if
    a run has no metrics yet.
    """
    groups = [[entry] if isinstance(entry, Path) else list(entry) for entry in workdirs]
    # `train --seeds` names the folder of a seed `seed_0`.
    labels = labels or names([of[0].parent if of[1:] and of[0].name.startswith("seed_") else of[0] for of in groups])
    texts = [f"{label} ({len(of)} seeds)" if of[1:] else label for label, of in zip(labels, groups, strict=True)]
    handles = [Line2D([], [], color=style.look(n).colour, **marks(n, 2)) for n in range(len(groups))]
    with style.styled():
        figure = style.create_figure(style.PAGE, 2.3)
        accuracy, loss = figure.subplots(1, 2)
        records = [read_group(group) for group in groups]
        for split, line in LINES.items():
            chosen = [[record for record in of_run if record["split"] == split] for of_run in records]
            if any(chosen):
                texts.append(split)
                handles.append(Line2D([], [], color="0.3", linestyle=line))
            for n, of_run in enumerate(chosen):
                draw_mean(accuracy, of_run, "accuracy", split, n, scale=100)
                draw_mean(loss, of_run, "loss", split, n)
        accuracy.set(xlabel="epoch", ylabel="accuracy (%)", title="accuracy")
        loss.set(xlabel="epoch", ylabel="cross-entropy (nats)", title="loss")
        for axes in (accuracy, loss):
            style.decorate(axes)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for columns in (4, 3, 2, 1):  # as many as fit beside each other
            legend = figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
            if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                break
            legend.remove()
    return figure


def draw_mean(axes: Axes, records: list[dict], name: str, split: str, n: int, scale: float = 1.0) -> None:
    """Draws one number of the records of a split over epochs, in the colour of run `n`.

    Of several seeds the mean, with a band of one standard deviation of a sample (over n - 1) to either side.
    """
    moments: dict[int, list[dict]] = {}
    for record in records:
        if name in record:  # imported weights come without a loss
            moments.setdefault(record["step"], []).append(record)
    if not moments:
        return
    epochs = [seeds[0]["epoch"] for seeds in moments.values()]
    values = [[scale * record[name] for record in seeds] for seeds in moments.values()]
    mean = np.array([np.mean(seeds) for seeds in values])
    look = {"color": style.look(n).colour, "linewidth": 0.7 if split == "train" else 1.1}
    axes.plot(epochs, mean, LINES[split], gid=f"{n} {split}", **look, **marks(n, len(epochs)))
    if any(len(seeds) > 1 for seeds in values):
        std = np.array([np.std(seeds, ddof=1) if len(seeds) > 1 else 0.0 for seeds in values])
        band = {"color": look["color"], "alpha": 0.2, "linewidth": 0}
        axes.fill_between(epochs, mean - std, mean + std, gid=f"{n} {split} band", **band)


def marks(n: int, epochs: int) -> dict[str, Any]:
    """The marks on a curve: of run `n` that has the colour of another, about eight; a dot where there is one epoch."""
    if n < len(style.COLOURS):
        return {"marker": "." if epochs == 1 else ""}
    return {"marker": style.look(n).marker, "markersize": 2.5, "markevery": -(-epochs // 8)}


def read_group(workdirs: list[Path]) -> list[dict]:
    """Returns the records of runs that differ in their seed alone, by their steps; UserError if a run has none yet."""
    records = []
    for workdir in workdirs:
        of_run = read_metrics(workdir / "metrics.jsonl")
        if not of_run:
            raise UserError(f"{workdir} has no metrics yet: train it with train.py --workdir={workdir}")
        records += of_run
    return sorted(records, key=lambda record: record["step"])


def names(workdirs: list[Path]) -> list[str]:
    """Returns the runs' folder names, with as many parents as make them differ."""
    paths = [path.absolute() for path in workdirs]
    for depth in range(1, max(len(path.parts) for path in paths)):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            break
    # A legend leaves out what begins with an underscore.
    return [f"./{name}" if name.startswith("_") else name for name in labels]
