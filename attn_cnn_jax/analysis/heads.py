"""Statistics of what every head attends to, and which shifts of a convolution's grid a layer covers.

    python -m attn_cnn_jax.analysis.heads RUN [--step=latest] [--images=100] [--grid=K] [--csv=FILE]

Everything is computed from attention probabilities, by the same functions for every encoding, and averaged
over query pixels and, where attention depends on content, over test pictures. Near the border attention
has to turn inwards: `--query=ROW,COLUMN` looks at one query pixel alone. Pixels are those that attention
works on, after the down-sampling; entropy is in nats.
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.cli.arguments import add_seed, at_least_one, pixel, step
from attn_cnn_jax.errors import UserError, says_errors
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.pruning import degenerate_heads
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.load import Run, load_run

UNIFORM = 0.999  # share of the largest entropy possible above which attention counts as uniform
COVERED = 0.5  # share of its attention that a head must have on a shift to cover it


class Statistics(NamedTuple):
    """Of one layer: arrays over heads, averaged over query pixels and pictures."""

    centre: np.ndarray  # (h, 2) pixels, row first: centre of mass of the shift key - query
    covariance: np.ndarray  # (h, 2, 2) square pixels, of the key within one query's attention
    entropy: np.ndarray  # (h,) nats
    distance: np.ndarray  # (h,) pixels: mean |key - query|
    mass_at_centre: np.ndarray  # (h,) share of the attention in the pixel nearest to its centre
    shift_mass: np.ndarray  # (h, n) share of the attention on each shift of a grid


def layer_statistics(
    probabilities: np.ndarray, shifts: np.ndarray, queries: Iterable[tuple[int, int]] | None = None
) -> Statistics:
    """Statistics of one layer from its attention.

    Args:
      probabilities: `(b, h, i, j, k, l)`, sums to one over keys.
      shifts: `(n, 2)` integers, for `shift_mass`; there, a query counts for the shifts that stay inside.
      queries: the query pixels to average over; None for all.
    """
    height, width = probabilities.shape[2:4]
    queries = [(i, j) for i in range(height) for j in range(width)] if queries is None else list(queries)
    sums = [0.0] * 5
    masses, counts = np.zeros((probabilities.shape[1], len(shifts))), np.zeros(len(shifts))
    for i, j in queries:
        attention = moments.normalised(probabilities[:, :, i, j])
        values = (
            moments.centre_of_mass(attention) - (i, j),
            moments.covariance(attention),
            moments.entropy(attention),
            moments.distance(attention, (i, j)),
            moments.mass_at_centre(attention),
        )
        sums = [total + value.mean(axis=0) for total, value in zip(sums, values, strict=True)]
        rows, columns = i + shifts[:, 0], j + shifts[:, 1]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        masses[:, inside] += attention[:, :, rows[inside], columns[inside]].mean(axis=0)
        counts += inside
    shift_mass = np.divide(masses, counts, out=np.zeros_like(masses), where=counts > 0)
    return Statistics(*(total / len(queries) for total in sums), shift_mass)


def run_statistics(
    run: Run,
    *,
    num_images: int = 100,
    query: tuple[int, int] | None = None,
    grid_size: int | None = None,
    data_dir: str | Path | None = None,
) -> list[Statistics]:
    """Statistics of every layer of a run.

    Args:
      num_images: test pictures to average over where attention depends on content.
      query: one query pixel; None averages over all.
      grid_size: K of the K x K shifts for `shift_mass`; None for the largest square of heads.
      data_dir: where the data set lies, if not where the run had it.

    Raises:
      UserError: for a network without attention, a query or a grid outside the picture, or data that is not there.
    """
    if query is not None:
        check_query(query, pictures.grid(run))
    if grid_size is not None and not 1 <= grid_size <= 2 * max(pictures.grid(run)) - 1:
        largest = 2 * max(pictures.grid(run)) - 1
        raise UserError(f"--grid={grid_size}: allowed is 1 to {largest}, all shifts between two pixels")
    sums, total = None, 0
    for count, layers in pictures.attention_batches(run, num_images, data_dir):
        batch = [
            layer_statistics(layer, grid_shifts(layer.shape[1], grid_size), None if query is None else [query])
            for layer in layers
        ]
        weighted = [[count * np.asarray(value) for value in layer] for layer in batch]
        sums = weighted if sums is None else [add(a, b) for a, b in zip(sums, weighted, strict=True)]
        total += count
    return [Statistics(*(value / total for value in layer)) for layer in sums]


def add(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    return [x + y for x, y in zip(a, b, strict=True)]


def check_query(query: tuple[int, int], grid: tuple[int, int]) -> None:
    """UserError unless a query pixel lies in the picture."""
    if not all(0 <= position < size for position, size in zip(query, grid, strict=True)):
        raise UserError(
            f"query {query[0]},{query[1]}: allowed is ROW,COLUMN from 0,0 to {grid[0] - 1},{grid[1] - 1}, "
            "in pixels after the down-sampling"
        )


def grid_shifts(num_heads: int, grid_size: int | None = None) -> np.ndarray:
    """Shifts of the K x K kernel that heads may cover, `(K^2, 2)`; by default the largest with `K^2 <= num_heads`."""
    size = math.isqrt(num_heads) if grid_size is None else grid_size
    return kernel_shifts((size, size))


def grid_coverage(shift_mass: np.ndarray) -> np.ndarray:
    """Which head serves which shift: the assignment with the largest total attention on its shifts.

    Args:
      shift_mass: `(h, n)`, share of each head's attention on each shift.

    Returns:
      `(n,)` integers: the head of every shift, each head at most once; -1 where heads run out.
    """
    heads, shifts = linear_sum_assignment(shift_mass, maximize=True)
    assigned = np.full(shift_mass.shape[1], -1)
    assigned[shifts] = heads
    return assigned


def reasons(run: Run, layer: int, statistics: Statistics) -> list[str]:
    """Why each head of a layer is degenerate; "" for those that are not.

    By the criteria of models/pruning.py where there is a spread; else uniform attention is.
    """
    if run.config.model.encoding in ("quadratic", "quadratic_generalized"):
        found = degenerate_heads(split(run.model)[1]).get(layer, {})
        return [found.get(head, "") for head in range(len(statistics.entropy))]
    most = math.log(math.prod(pictures.grid(run)))
    return [
        f"uniform: entropy {value:.4f} of at most {most:.4f}" if value > UNIFORM * most else ""
        for value in statistics.entropy
    ]


def rows(run: Run, statistics: list[Statistics]) -> list[dict]:
    """The table, one dictionary a head; layers and heads counted from 1, as in the paper."""
    table = []
    for layer, of_layer in enumerate(statistics):
        spreads, directions = moments.main_axes(of_layer.covariance)
        why = reasons(run, layer, of_layer)
        for head in range(len(why)):
            row, column = directions[head]
            table.append(
                {
                    "layer": layer + 1,
                    "head": head + 1,
                    "centre_row": of_layer.centre[head, 0],
                    "centre_column": of_layer.centre[head, 1],
                    "spread_major": spreads[head, 0],
                    "spread_minor": spreads[head, 1],
                    # Of the major axis, from the row axis (down) towards the column axis (right).
                    "angle_degrees": round(math.degrees(math.atan2(column, row)), 6) % 180,
                    "entropy": of_layer.entropy[head],
                    "distance": of_layer.distance[head],
                    "mass_at_centre": of_layer.mass_at_centre[head],
                    "degenerate": why[head],
                }
            )
    return table


def to_csv(table: list[dict]) -> str:
    """Comma-separated values with a header; numbers with six significant digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, table[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()} for row in table)
    return text.getvalue()


def to_text(table: list[dict]) -> str:
    """The table for a terminal."""
    lines = ["layer head  centre (row, col)  spread (major, minor)  entropy  distance  at centre  degenerate"]
    lines += [
        f"{row['layer']:5d} {row['head']:4d}  {row['centre_row']:+7.2f} {row['centre_column']:+7.2f}  "
        f"{row['spread_major']:11.2f} {row['spread_minor']:9.2f}  {row['entropy']:7.3f}  {row['distance']:8.2f}  "
        f"{row['mass_at_centre']:9.1%}  {row['degenerate']}".rstrip()
        for row in table
    ]
    return "\n".join(lines)


def coverage_text(statistics: list[Statistics], grid_size: int | None) -> str:
    """Per layer, the grid of shifts with the head that serves each and its share of attention there."""
    lines = []
    for layer, of_layer in enumerate(statistics):
        shifts = grid_shifts(len(of_layer.entropy), grid_size)
        assigned = grid_coverage(of_layer.shift_mass)
        size = math.isqrt(len(shifts))
        shares = [of_layer.shift_mass[head, n] if head >= 0 else 0.0 for n, head in enumerate(assigned)]
        covered = sum(share >= COVERED for share in shares)
        lines.append(f"layer {layer + 1}: {covered} of {len(shifts)} shifts of the {size}x{size} grid covered")
        cells = [
            f"({row:+d},{column:+d}) " + (f"head {head + 1} {share:4.0%}" if head >= 0 else "no head")
            for (row, column), head, share in zip(shifts, assigned, shares, strict=True)
        ]
        lines += [
            "  " + "   ".join(f"{cell:20s}" for cell in cells[n : n + size]).rstrip()
            for n in range(0, len(cells), size)
        ]
    return "\n".join(lines)


@says_errors
def main(argv: list[str] | None = None) -> int:
    """The command; see the module's docstring. Exit status 0, or 1 for an error said in a line or two."""
    parser = argparse.ArgumentParser(prog="python -m attn_cnn_jax.analysis.heads", description=__doc__.split("\n")[0])
    parser.add_argument("run", metavar="RUN", help="run directory that train.py left")
    parser.add_argument("--step", type=step, default="latest", help="latest, best, or the number of a checkpoint")
    add_seed(parser)
    parser.add_argument("--images", type=at_least_one, default=100, help="test pictures for content models (100)")
    parser.add_argument("--query", type=pixel, metavar="ROW,COLUMN", help="one query pixel; by default the mean of all")
    parser.add_argument("--grid", type=at_least_one, metavar="K", help="K of the K x K grid of shifts")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table there")
    parser.add_argument("--data-dir", help="where the data set lies, if not where the run had it")
    args = parser.parse_args(argv)
    run = load_run(args.run, args.step, args.seed)
    statistics = run_statistics(
        run, num_images=args.images, query=args.query, grid_size=args.grid, data_dir=args.data_dir
    )
    table = rows(run, statistics)
    if args.csv:
        try:
            write_atomically(args.csv, to_csv(table))
        except OSError as error:
            raise UserError(f"cannot write {args.csv}: {error.strerror}; choose another --csv=FILE") from error
    print(to_text(table), coverage_text(statistics, args.grid), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
