"""Attention learns a convolution: error and centres of a quadratic layer trained to be a random 3x3 convolution.

    python -m benchmarks.learn_convolution --out=results/learn_convolution
    python -m benchmarks.learn_convolution --draw=results/learn_convolution --figure=DIR

The first trains students of 4, 9 and 16 heads, three seeds each, and writes `results.json` and a table; students that
the file has are not trained again. The second draws the figure of the documentation from it. Of every student: its
error on images it has not seen, the residual of Lemma 3 at the end (the least error that one set of value maps could
reach with these centres), and the history of errors and centres. See attn_cnn_jax/theorem/learning.py.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import jax
import numpy as np

from attn_cnn_jax.analysis.figures import learning as figure
from attn_cnn_jax.cli.arguments import at_least_one, integers
from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.theorem import learning, span
from attn_cnn_jax.theorem.to_convolution import position_attention
from benchmarks.measure import table
from benchmarks.records import put_figure

FILE = "results.json"
# What the numbers depend on beside the seed.
MACHINE = {"jax": jax.__version__, "python": platform.python_version()}
SHOWN = 21  # records of a course that are kept
COLUMNS = ("heads", "seeds", "relative error", "residual of Lemma 3", "|centre| along an axis", "steps", "seconds")


@says_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results.json is written or continued")
    parser.add_argument("--heads", type=integers, default=[4, 9, 16], metavar="N,...", help="4,9,16")
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2], metavar="N-N", help="of teacher and student: 0-2")
    parser.add_argument("--steps", type=at_least_one, default=3000)
    parser.add_argument("--draw", type=Path, metavar="DIR", help="draw the figure of the results there instead")
    parser.add_argument("--figure", type=Path, metavar="DIR", help="where to draw it")
    options = parser.parse_args(argv)
    if options.draw:
        trainings = json.loads((options.draw / FILE).read_text())["trainings"]
        print(table(rows(trainings), COLUMNS))
        if options.figure:
            put_figure(figure.draw(trainings), options.figure / "learn_convolution.png")
        return 0
    file = options.out / FILE if options.out else None
    done = json.loads(file.read_text())["trainings"] if file and file.exists() else []
    for heads in options.heads:
        for seed in options.seeds:
            if any((each["heads"], each["seed"], each["steps"]) == (heads, seed, options.steps) for each in done):
                continue
            trained = train(heads, seed, options.steps)
            done.append(trained)
            done.sort(key=lambda each: (each["heads"], each["steps"], each["seed"]))
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                lines = ",\n".join(json.dumps(training) for training in done)
                write_atomically(file, f'{{"machine": {json.dumps(MACHINE)}, "trainings": [\n{lines}\n]}}\n')
            print(f"{heads} heads, seed {seed}: relative error {trained['final_error']:.3g}", flush=True)
    print(table(rows(done), COLUMNS))
    return 0


def train(heads: int, seed: int, steps: int) -> dict:
    """Returns the course of one training, ready for JSON; the seed is that of teacher and student."""
    started = time.monotonic()
    course = learning.learn_convolution(learning.random_kernel(seed), heads, seed=seed, num_steps=steps)
    attention = np.asarray(position_attention(course.layer, (learning.SIZE, learning.SIZE)))
    solved = span.mixing(attention, kernel_shifts((3, 3)), learning.interior_queries())
    kept = np.unique(np.linspace(0, len(course.step) - 1, SHOWN).round().astype(int))
    return {
        "heads": heads,
        "seed": seed,
        "steps": steps,
        "final_error": rounded(course.final_error),
        "residual": rounded(solved.residual),
        "seconds": round(time.monotonic() - started, 1),
        "step": course.step[kept].tolist(),
        "error": [rounded(x) for x in course.error[kept]],
        "centre": np.round(course.centre[kept].astype(float), 4).tolist(),
        "spread": np.round(course.spread[kept].astype(float), 4).tolist(),
    }


def rows(trainings: list[dict]) -> list[dict]:
    """Returns a line of the table per number of heads and of steps: lowest to highest value of its seeds."""
    lines = []
    for heads, steps in sorted({(each["heads"], each["steps"]) for each in trainings}):
        of_count = [each for each in trainings if (each["heads"], each["steps"]) == (heads, steps)]
        far = np.abs([each["centre"][-1] for each in of_count]).ravel()
        lines.append(
            {
                "heads": heads,
                "seeds": len(of_count),
                "relative error": between([each["final_error"] for each in of_count]),
                "residual of Lemma 3": between([each["residual"] for each in of_count]),
                "|centre| along an axis": f"median {np.median(far):.2f}",
                "steps": steps,
                "seconds": statistics.median(each["seconds"] for each in of_count),
            }
        )
    return lines


def between(values: list[float]) -> str:
    """Returns the lowest and the highest value as percentages."""
    return f"{100 * min(values):.3g} to {100 * max(values):.3g}%"


def rounded(value: float) -> float:
    """Returns a number with four significant digits."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    sys.exit(main())
