"""Print a table of what every head attends to, and which shifts of a convolution's grid each layer covers.

Values are means over query pixels and, where attention depends on content, over test images; --query=ROW,COLUMN
looks at one query pixel alone. Near the border attention has to turn inwards, so the table has three centres per
head: "parameter" is the trained centre (quadratic encodings), "interior" the mean over queries at least a quarter of
the image's side away from the border, "all" the mean over all queries. The residual of Lemma 3 says how far the
shifts of the grid are from the span of a layer's attention maps at interior queries: at 0 the layer can be any
convolution with these shifts, at 1 none. Pixels are those that attention works on, after the down-sampling; entropy is
in nats; layers and heads count from 1, as in the paper.
"""

import argparse
import math

from attn_cnn_jax.analysis.heads import Statistics, grid_coverage, grid_shifts, rows, run_statistics
from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one, pixel
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.output import csv_text, say, table
from attn_cnn_jax.runs.load import load_run

EXAMPLE = "runs/digits --csv=heads.csv"
COVERED = 0.5  # share of its attention that a head must have on a shift to cover it
CENTRES = {"parameter": "centre: parameter", "interior": "interior", "all": "all", "query": "query"}  # reading: header
COLUMNS = {  # header: how a row's values are shown
    "spread major": "{spread_major:.2f}",
    "minor": "{spread_minor:.2f}",
    "entropy": "{entropy:.3f}",
    "distance": "{distance:.2f}",
    "at centre": "{mass_at_centre:.1%}",
    "degenerate": "{degenerate}",
}


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--data-dir", "--images")
    parser.add_argument("--query", type=pixel, metavar="ROW,COLUMN", help="one query pixel; the mean of all by default")
    parser.add_argument("--grid", type=at_least_one, metavar="K", help="K of the K x K grid of shifts")
    parser.add_argument("--csv", type=as_path, metavar="FILE", help="also write the table there")


def run(args: argparse.Namespace) -> None:
    run = load_run(args.run, args.step)
    looked = {"num_images": args.images, "query": args.query, "grid_size": args.grid, "data_dir": args.data_dir}
    statistics = run_statistics(run, **looked)
    found = rows(run, statistics, args.query)
    if args.csv:
        write_atomically(args.csv, csv_text(found))
    say(f"{to_text(found)}\n\n{coverage_text(statistics, args.grid)}")


def to_text(found: list[dict]) -> str:
    """Returns the table for a terminal; centres as row and column, in pixels from the query."""
    readings = [reading for reading in CENTRES if f"centre_{reading}_row" in found[0]]
    header = ["layer", "head", *(CENTRES[reading] for reading in readings), *COLUMNS]
    cells = [
        [row["layer"], row["head"]]
        + [centre_text(row[f"centre_{reading}_row"], row[f"centre_{reading}_column"]) for reading in readings]
        + [look.format(**row) for look in COLUMNS.values()]
        for row in found
    ]
    return table(cells, header, left=0)


def centre_text(row: float | str, column: float | str) -> str:
    """Returns a centre as `+0.50, -1.25`; a dash where the encoding has none."""
    return "-" if isinstance(row, str) or isinstance(column, str) else f"{row:+.2f}, {column:+.2f}"


def coverage_text(statistics: list[Statistics], grid_size: int | None) -> str:
    """Returns, per layer, the grid of shifts with the head that serves each and its share of attention there."""
    parts = []
    for layer, of_layer in enumerate(statistics, start=1):
        shifts, assigned = grid_shifts(len(of_layer.entropy), grid_size), grid_coverage(of_layer.shift_mass)
        size, cells, covered = math.isqrt(len(shifts)), [], 0
        for n, ((row, column), head) in enumerate(zip(shifts, assigned, strict=True)):
            share = of_layer.shift_mass[head, n] if head >= 0 else 0.0
            covered += share >= COVERED
            cells.append(f"({row:+d},{column:+d}) " + (f"head {head + 1} {share:4.0%}" if head >= 0 else "no head"))
        parts.append(
            f"layer {layer}: {covered} of {len(shifts)} shifts of the {size}x{size} grid covered; "
            f"Lemma 3: residual {of_layer.span_residual:.3f}"
        )
        parts.append(table([cells[n : n + size] for n in range(0, len(cells), size)], left=size))
    return "\n".join(parts)
