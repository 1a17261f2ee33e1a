"""Where the heads of the kept networks of miniature.py look, by layer: a table of the last epoch, a figure of all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.figures import style

PANELS = {"distance": "distance (pixels)", "within": "within 3x3 (%)", "entropy": "entropy (nats)"}
COLUMNS = ("network", "layer", "distance (pixels)", "within 3x3 (%)", "heads within 3x3 (%)", "entropy (nats)")
STEPS = 500  # of an epoch: 50,000 images in batches of 100
LOCAL = 0.5  # a head is within 3x3 if more than this share of its attention is


def measures(kept: Path, network: str) -> dict[str, np.ndarray] | None:
    """By measure, an array `(seed, record, layer, head)`, and `epoch`, `(record,)`; None where no run is kept."""
    files = sorted((kept / network).glob("seed_*/heads.jsonl"))
    runs = [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in files]
    if not runs:
        return None
    found = {name: np.array([[[layer[name] for layer in e["layers"]] for e in run] for run in runs]) for name in PANELS}
    return found | {"epoch": np.array([record["step"] / STEPS for record in runs[0]])}


def rows(kept: Path, networks: Sequence[str]) -> list[dict[str, Any]]:
    """A row per network and layer: means over heads and seeds after the last epoch."""
    found = []
    for network in networks:
        if (of := measures(kept, network)) is None:
            continue
        distance, within, entropy = (of[name][:, -1] for name in PANELS)
        for layer in range(distance.shape[1]):
            far, chaos = (f"{values[:, layer].mean():.2f}" for values in (distance, entropy))
            near = (f"{100 * values[:, layer].mean():.0f}" for values in (within, within > LOCAL))
            found.append(dict(zip(COLUMNS, [f"`{network}`", layer + 1, far, *near, chaos], strict=True)))
    return found


def draw(kept: Path, networks: Sequence[str]) -> Figure:
    """A column per network and a row per measure, over epochs; a line per layer, from dark to light."""
    shown = [(network, of) for network in networks if (of := measures(kept, network)) is not None]
    with style.styled():
        figure = style.create_figure(1.25 * style.PAGE, 3.4)
        grid = figure.subplots(len(PANELS), len(shown), sharex=True, sharey="row", squeeze=False)
        lines = []
        for column, (network, of) in zip(grid.T, shown, strict=True):
            num_layers = of["distance"].shape[2]
            colours = matplotlib.colormaps["viridis"]([0.85 * n / max(1, num_layers - 1) for n in range(num_layers)])
            column[0].set_title(network.replace("_", "\n"))
            for axes, name in zip(column, PANELS, strict=True):
                values = of[name].mean(axis=(0, 3)) * (100 if name == "within" else 1)
                axes.set_prop_cycle(color=colours)
                lines = axes.plot(of["epoch"], values, marker=".")
                style.decorate(axes)
                axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            column[-1].set_xlabel("epoch")
        for row, label in zip(grid, PANELS.values(), strict=True):
            row[0].set_ylabel(label)
            row[0].set_ylim(bottom=0)  # of all panels of the row, once all lines are drawn
        names = [f"layer {n + 1}" for n in range(len(lines))]
        figure.legend(lines, names, loc="outside lower center", ncols=len(lines) or 1, frameon=False)
    return figure
