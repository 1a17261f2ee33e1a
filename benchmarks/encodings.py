"""Encodings compared: position encodings and starts in a small network, each with its best learning rate.

    taskset -c 1 python -m benchmarks.encodings --out=OUT --minutes=2      # first, on an idle core: images per second
    python -m benchmarks.encodings --out=OUT --data-dir=DIR [--seeds=0-2] [--only pape rope]
    python -m benchmarks.encodings --show=results/encodings [--write]

The network is that of `configs/cifar10_cpu.py:small_heads` with fewer channels and layers: NETWORK. The first times a
training step of every row, in turns in one process: a row's epochs are as many as fit into the minutes. The second
searches each row's learning rate, the same RATES for all, by an epoch on 45,000 training images and the accuracy on the
5,000 held out; then it trains every row with its best for its own epochs and for those of the first row, seed by seed,
and reads the test images once, at the end. It resumes where it stopped, and keeps what it measured in OUT/kept. The
third prints the table; --write puts it and its figure into the documentation.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from ml_collections import ConfigDict

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.analysis.heads import run_statistics
from attn_cnn_jax.analysis.test_images import load_dataset
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.data.image_files import as_image, fit
from attn_cnn_jax.errors import UserError, exits_with_messages
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.theorem import expresses
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.mesh import data_mesh
from benchmarks.measure import turns, write_json
from benchmarks.networks import random_images, training
from benchmarks.records import (
    DOCS,
    accuracies,
    keep,
    kept_runs,
    markdown,
    parse,
    parser,
    put_figure,
    show,
    with_deviation,
)
from benchmarks.tricks import name_of

# Position alone; scores of the image as the encoding has them or with q . k beside it; other starts.
POSITION = ("quadratic", "quadratic_generalized", "learned", "alibi", "alibi_manhattan", "kerple", "fire", "lookhere")
CONTENT = ("pape", "pape_ri", "rope", "rope_mixed", "relative", "absolute_learned", "absolute_sinusoidal", "content")
BESIDE = ("quadratic", "learned", "alibi", "kerple", "fire", "lookhere")
BOTH = {f"{name} + content": (f"model.encoding={name}", "model.content=True") for name in BESIDE}
STARTS = ("grid", "identity", "impulse", "mimetic")
ROWS: dict[str, tuple[str, ...]] = {name: (f"model.encoding={name}",) for name in (*POSITION, *CONTENT)}
ROWS |= BOTH | {f"quadratic, {start}": (f"model.init={start}",) for start in STARTS}
ROWS |= {
    f"quadratic + content, {start}": ("model.content=True", f"model.init={start}") for start in ("grid", "mimetic")
}
FIRST = next(iter(ROWS))
NETWORK = ("model.hidden_size=64", "model.intermediate_size=128", "model.num_layers=3", "model.init=paper")
RATES = (0.002, 0.004, 0.008, 0.016)
SIZES = (48, 64)  # without training; it trains at 32
BUDGET = "budget.json"  # minutes, and by row the images per second in training
SEARCH = "search.json"  # by learning rate the validation accuracy (%)
MEASURED = "measured.json"  # what `measured` found
COST = ("encoding", "learning rate", "parameters", "FLOPs per image", "images per second", "epochs", "same time (%)")
FOUND = (
    "encoding",
    "same epochs (%)",
    "at 48x48 (%)",
    "at 64x64 (%)",
    "within 3x3 (%)",
    "residual of Lemma 3",
    "kernels",
)
COLUMNS = (*COST, *FOUND[1:])
PAGE = DOCS / "encodings.md"


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--minutes", type=float, metavar="N", help="measure how many epochs fit into them")
    described.add_argument("--only", choices=ROWS, nargs="+", default=list(ROWS), metavar="ROW")
    options = parse(described, argv)
    kept = options.show or options.out / "kept"
    if options.minutes and options.out:
        kept.mkdir(parents=True, exist_ok=True)
        write_json(kept / BUDGET, {"minutes": options.minutes, "images_per_second": speeds(repeats=3)})
        return 0
    if options.out:
        for seed in options.seeds:
            for row in options.only:
                train(row, seed, options.out, options.data_dir)
    show(tables(kept), PAGE, "encodings", write=options.write)
    if options.write:
        put_figure(draw(kept), DOCS / "encodings.png")
    return 0


def configured(row: str, seed: int, epochs: int, rate: float, *, held_out: int = 0, data_dir: str = "") -> ConfigDict:
    """The configuration of a run."""
    settings = (*NETWORK, *ROWS[row], f"seed={seed}", f"train.num_epochs={epochs}", f"optimizer.learning_rate={rate}")
    config = load_config("cifar10_cpu:small_heads", [f"--config.{each}" for each in settings])
    config.dataset.update({"data_dir": data_dir, "num_validation": held_out})
    config.train.update({"logger": "none", "eval_every_epochs": epochs})
    return config


def speeds(repeats: int) -> dict[str, float]:
    """Images per second that each row trains at: medians of turns in one process."""
    mesh, steps, batch = data_mesh(jax.devices()), {}, 0
    for row in ROWS:
        config = complete(configured(row, 0, 1, RATES[0]))
        batch = config.train.batch_size
        train_steps = training(config, mesh, random_images(config, 10 * batch, mesh))
        steps[row] = lambda train_steps=train_steps: train_steps(10)
    return {row: 10 * batch / statistics.median(times) for row, times in turns(steps, repeats).items()}


def measured_speeds(kept: Path) -> tuple[dict[str, float], dict[str, int]]:
    """By row, the images per second in training, and the epochs that fit into the minutes."""
    if not (kept / BUDGET).exists():
        raise UserError(f"no {kept / BUDGET}: measure the rows first, with --minutes=N on an idle machine")
    budget = json.loads((kept / BUDGET).read_text(encoding="utf-8"))
    speed = budget["images_per_second"]
    return speed, {row: max(1, round(60 * budget["minutes"] * speed[row] / 50_000)) for row in speed}


def train(row: str, seed: int, out: Path, data_dir: str) -> None:
    """Trains a row for its epochs and for those of the first row; before that, its learning rates."""
    _, epochs = measured_speeds(out / "kept")
    folder, of_all = name_of(row), epochs[FIRST]
    search = out / "kept" / folder / SEARCH
    if not search.exists():
        reached = {}
        for rate in RATES:
            place = out / folder / "search" / str(rate)
            loop.run(configured(row, 0, 1, rate, held_out=5_000, data_dir=data_dir), place)
            reached[rate] = round(accuracies(place, "validation")[-1], 2)
        search.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(search, json.dumps({"validation": reached}) + "\n")
    rate = best_rate(out / "kept", row)
    for number in dict.fromkeys([of_all, epochs[row]]):
        place = Path(folder, f"epochs_{number}", f"seed_{seed}")
        if not (out / "kept" / place / "config.json").exists():
            config = configured(row, seed, number, rate, data_dir=data_dir)
            loop.run(config, out / place)
            if number == of_all:
                found = json.dumps(measured(out / place, data_dir)) + "\n"
                (out / "kept" / place).mkdir(parents=True, exist_ok=True)
                write_atomically(out / "kept" / place / MEASURED, found)
            keep(out / place, out / "kept" / place)


def best_rate(kept: Path, row: str) -> float:
    """The learning rate of a row, chosen by validation accuracy."""
    reached = json.loads((kept / name_of(row) / SEARCH).read_text(encoding="utf-8"))["validation"]
    return float(max(reached, key=reached.__getitem__))


def measured(workdir: Path, data_dir: str) -> dict[str, Any]:
    """Accuracy (%) by image size without training, and by layer the share of attention within 3x3 and the residual."""
    run = load_run(workdir)
    images, labels = load_dataset(run, data_dir).test
    found: dict[str, Any] = {"sizes": {}}
    for size in SIZES:
        resized = np.stack([fit(as_image(image), (size, size)) for image in images])
        found["sizes"][size] = round(100 * run.at_size(size).evaluate(resized, labels).accuracy, 2)
    layers = run_statistics(run, num_images=20, grid_size=3, data_dir=data_dir)
    found["within"] = [round(100 * float(layer.within.mean()), 1) for layer in layers]
    return found | {"residual": [round(layer.span_residual, 3) for layer in layers]}


def tables(kept: Path) -> str:
    """What rows cost and reach in the same time; what they reach in the same epochs, and what their heads do."""
    found = rows(kept)
    return "\n".join(markdown(found, names) for names in (COST, FOUND))


def rows(kept: Path) -> list[dict[str, Any]]:
    """The rows of the table: means and deviations over seeds; of heads, means after the same epochs, by layer."""
    table, (speed, epochs) = [], measured_speeds(kept)
    for row in ROWS:
        of_time, of_epochs = (kept_runs(kept / name_of(row) / f"epochs_{n}") for n in (epochs[row], epochs[FIRST]))
        if not of_time and not of_epochs:
            continue
        model = complete(configured(row, 0, 1, RATES[0])).model
        cells = [f"`{row}`", best_rate(kept, row), f"{count_parameters(model):,}", short(count_flops(model).full)]
        cells += [f"{speed[row]:.0f}", epochs[row]]
        found = [json.loads((run / MEASURED).read_text(encoding="utf-8")) for run in of_epochs]
        reached = [[accuracies(run)[-1] for run in runs] for runs in (of_time, of_epochs)]
        reached += [[run["sizes"][str(size)] for run in found] for size in SIZES]
        cells += [with_deviation(values) if values else "" for values in reached]
        for name, digits in (("within", 0), ("residual", 2)):
            layers = zip(*(run[name] for run in found), strict=True)
            cells.append(", ".join(f"{statistics.mean(values):.{digits}f}" for values in layers))
        cells.append(expresses(model.encoding).kernels)
        table.append(dict(zip(COLUMNS, cells, strict=True)))
    return table


def draw(kept: Path) -> Figure:
    """Accuracy after the same epochs against the time of an image: a point an encoding, with its deviation over seeds.

    Names of neighbours stand above each other, beside their points.
    """
    speed, epochs = measured_speeds(kept)
    kinds = {"position alone": POSITION, "scores of the image": CONTENT, "position and q · k": BOTH}
    colours = {row: colour for colour, names in zip(style.COLOURS, kinds.values(), strict=False) for row in names}
    runs = {row: kept_runs(kept / name_of(row) / f"epochs_{epochs[FIRST]}") for row in colours}
    reached = {row: [accuracies(run)[-1] for run in each] for row, each in runs.items() if each}
    with style.styled():
        figure = style.create_figure(style.PAGE, 3.6)
        axes = figure.subplots()
        free: dict[int, float] = {}  # by halves of a millisecond, where the next name has room
        for row in sorted(reached, key=lambda row: statistics.mean(reached[row])):
            milliseconds, accuracy = 1000 / speed[row], statistics.mean(reached[row])
            deviation = statistics.stdev(reached[row]) if len(reached[row]) > 1 else 0
            axes.errorbar(milliseconds, accuracy, deviation, fmt="o", color=colours[row], markersize=3, linewidth=0.8)
            height = max(accuracy, free.get(round(2 * milliseconds), accuracy))
            free[round(2 * milliseconds)] = height + 0.45
            place = {"xytext": (milliseconds + 0.06, height), "va": "center", "fontsize": 6, "color": colours[row]}
            line = {"arrowstyle": "-", "lw": 0.3, "color": colours[row]}
            axes.annotate(row, (milliseconds, accuracy), **place, arrowprops=line)
        handles = [Line2D([], [], color=colour, marker="o", markersize=3, linestyle="") for colour in style.COLOURS[:3]]
        axes.legend(handles, list(kinds), loc="lower right", frameon=False)
        axes.set(xlabel="training, milliseconds per image", ylabel="test accuracy (%)")
        axes.set_xlim(right=axes.get_xlim()[1] + 0.15)
        style.decorate(axes)
    return figure


if __name__ == "__main__":
    sys.exit(main())
