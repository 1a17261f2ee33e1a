"""Attention learns a convolution: error and centres of a quadratic layer trained to be a random 3x3 convolution.

    python -m benchmarks.learn_convolution --out=results/learn_convolution
    python -m benchmarks.learn_convolution --show=results/learn_convolution [--write]

The first trains students of 4, 9 and 16 heads, three seeds each, and writes `results.json`; students that the file has
are not trained again. Both print a table; --write draws the figure of the documentation. Of every student: its error
on images it has not seen, the residual of Lemma 3 at the end (the least error that one set of value maps could reach
with these centres), and the history of errors and centres. See attn_cnn_jax/theorem/learning.py.
"""

import itertools
import json
import statistics
import sys
import time

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.figures.centres import mark_centres
from attn_cnn_jax.analysis.figures.labels import number_heads
from attn_cnn_jax.analysis.figures.training import draw_paths
from attn_cnn_jax.cli.arguments import at_least_one, integers
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.theorem import learning, span
from attn_cnn_jax.theorem.to_convolution import position_attention
from benchmarks.measure import table
from benchmarks.records import DOCS, parse, parser, put_figure, write_trainings

FILE = "results.json"
SHOWN = 21  # records of a history that are kept
REACH = 3.5  # pixels from the query that the figure shows
COLUMNS = ("heads", "seeds", "relative error", "residual of Lemma 3", "|centre| along an axis", "steps", "seconds")


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--heads", type=integers, default=[4, 9, 16], metavar="N,...", help="4,9,16")
    described.add_argument("--steps", type=at_least_one, default=3000)
    options = parse(described, argv)
    file = (options.show or options.out) / FILE
    done = json.loads(file.read_text())["trainings"] if options.show or file.exists() else []
    had = [(each["heads"], each["seed"], each["steps"]) for each in done]
    for heads, seed in itertools.product(options.heads, options.seeds) if options.out else ():
        if (heads, seed, options.steps) in had:
            continue
        done.append(trained := train(heads, seed, options.steps))
        done.sort(key=lambda each: (each["heads"], each["steps"], each["seed"]))
        write_trainings(file, done)
        print(f"{heads} heads, seed {seed}: relative error {trained['final_error']:.3g}", flush=True)
    print(table(rows(done), COLUMNS))
    if options.write:
        put_figure(draw(done), DOCS / "learn_convolution.png")
    return 0


def train(heads: int, seed: int, steps: int) -> dict:
    """The history of one training, ready for JSON; the seed is that of teacher and student."""
    started = time.monotonic()
    training = learning.learn_convolution(learning.random_kernel(seed), heads, seed=seed, num_steps=steps)
    attention = np.asarray(position_attention(training.layer, (learning.SIZE, learning.SIZE)))
    inner = range(learning.MARGIN, learning.SIZE - learning.MARGIN)
    queries = [(i, j) for i in inner for j in inner]
    solved = span.mixing(attention, kernel_shifts((3, 3)), queries)
    kept = np.unique(np.linspace(0, len(training.step) - 1, SHOWN).round().astype(int))
    return {
        "heads": heads,
        "seed": seed,
        "steps": steps,
        "final_error": rounded(training.final_error),
        "residual": rounded(solved.residual),
        "seconds": round(time.monotonic() - started, 1),
        "step": training.step[kept].tolist(),
        "error": [rounded(x) for x in training.error[kept]],
        "centre": np.round(training.centre[kept].astype(float), 4).tolist(),
        "spread": np.round(training.spread[kept].astype(float), 4).tolist(),
    }


def rows(trainings: list[dict]) -> list[dict]:
    """A row per number of heads and of steps: lowest to highest value of its seeds."""
    found = []
    for heads, steps in sorted({(each["heads"], each["steps"]) for each in trainings}):
        of_count = [each for each in trainings if (each["heads"], each["steps"]) == (heads, steps)]
        errors, residuals = ([100 * each[key] for each in of_count] for key in ("final_error", "residual"))
        between = [f"{min(values):.3g} to {max(values):.3g}%" for values in (errors, residuals)]
        far = f"median {np.median(np.abs([each['centre'][-1] for each in of_count])):.2f}"
        seconds = statistics.median(each["seconds"] for each in of_count)
        found.append(dict(zip(COLUMNS, [heads, len(of_count), *between, far, steps, seconds], strict=True)))
    return found


def draw(trainings: list[dict]) -> Figure:
    """Returns errors of attention that learns a convolution over steps, and a panel of centres per number of heads.

    Args:
      trainings: with `heads`, `seed`, `final_error`, and over training `step` and `error`, `(n,)`, `centre`,
        `(n, h, 2)`. Centres are those of the first seed of each number of heads.
    """
    counts = sorted({training["heads"] for training in trainings})
    with style.styled():
        figure = style.create_figure(7.0, 2.5)
        errors, *panels = figure.subplots(1, 1 + len(counts), width_ratios=(1.25, *[1] * len(counts)))
        for training in trainings:
            n = counts.index(training["heads"])
            label = f"{training['heads']} heads" if training["seed"] == min(t["seed"] for t in trainings) else None
            errors.semilogy(training["step"], training["error"], color=style.look(n).colour, linewidth=0.8, label=label)
        errors.set(xlabel="step", ylabel="relative error", title="error, every seed")
        errors.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        style.decorate(errors)
        errors.legend(frameon=False)
        last = {}
        for axes, count in zip(panels, counts, strict=True):
            training = next(training for training in trainings if training["heads"] == count)
            centres = np.asarray(training["centre"])
            axes.set(xlim=(-REACH, REACH), ylim=(REACH, -REACH), aspect="equal")
            axes.set(title=f"{count} heads: {100 * training['final_error']:.2g}%", xlabel="columns from the query")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MultipleLocator(1))
            axes.grid(color="0.9", linewidth=0.4)
            axes.set_axisbelow(True)
            draw_paths(axes, centres)
            mark_centres(axes, centres[-1])
            style.mark_query(axes)
            last[axes] = centres[-1]
        panels[0].set_ylabel("rows from the query")
        number_heads(figure, last)
    return figure


def rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    sys.exit(main())
