"""Print a table of what every head attends to, and which shifts of a convolution's grid each layer covers.

Values are means over query pixels and, where attention depends on content, over test images; --query=ROW,COLUMN
looks at one query pixel alone. Near the border attention has to turn inwards, so the table has three centres per
head: "parameter" is the trained centre (quadratic encodings), "interior" the mean over queries at least a quarter of
the image's side away from the border, "all" the mean over all queries. The residual of Lemma 3 says how far the
shifts of the grid are from the span of a layer's attention maps at interior queries: at 0 the layer can be any
convolution with these shifts, at 1 none. Effective heads are the fewest that could replace a layer's heads: the rank of
its attention and value maps together, up to a relative error. Pixels are those that attention works on, after the
down-sampling; entropy is in nats; layers and heads count from 1, as in the paper.
"""

import argparse
import math
from typing import TYPE_CHECKING

from attn_cnn_jax.cli.arguments import Parser, as_path, at_least_one, pixel
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.output import columns, csv_text, say, table

if TYPE_CHECKING:
    from attn_cnn_jax.analysis.heads import Statistics

EXAMPLE = "runs/digits --csv=heads.csv"


def add_arguments(parser: Parser) -> None:
    parser.share("run", "--step", "--data-dir", "--images")
    parser.add_argument("--query", type=pixel, metavar="ROW,COLUMN", help="one query pixel; the mean of all by default")
    parser.add_argument("--grid", type=at_least_one, metavar="K", help="K of the K x K grid of shifts")
    parser.add_argument("--csv", type=as_path, metavar="FILE", help="also write the table there")


def run(args: argparse.Namespace) -> None:
    from attn_cnn_jax.analysis.heads import effective_heads, rows, run_statistics
    from attn_cnn_jax.runs.load import load_run

    run = load_run(args.run, args.step)
    looked = {"num_images": args.images, "query": args.query, "grid_size": args.grid, "data_dir": args.data_dir}
    statistics = run_statistics(run, **looked)
    records = rows(run, statistics, args.query)
    if args.csv:
        write_atomically(args.csv, csv_text(records))
    counts = effective_heads(run, [layer.patterns for layer in statistics])
    say(f"{to_text(records)}\n\n{coverage_text(statistics, counts, args.grid)}")


def to_text(records: list[dict]) -> str:
    """Returns the table for a terminal; centres as row and column, in pixels from the query."""
    last = "all" if "centre_all_row" in records[0] else "query"
    readings = {"centre: parameter": "parameter", "interior": "interior", last: last}
    centres = {
        header: f"{{centre_{name}_row:+z.2f}}, {{centre_{name}_column:+z.2f}}" for header, name in readings.items()
    }
    formats = {
        "layer": "{layer}",
        "head": "{head}",
        **centres,
        "spread major": "{spread_major:.2f}",
        "minor": "{spread_minor:.2f}",
        "entropy": "{entropy:.3f}",
        "distance": "{distance:.2f}",
        "at centre": "{mass_at_centre:.1%}",
        "degenerate": "{degenerate}",
    }
    return columns(records, formats, left=0)


def coverage_text(statistics: "list[Statistics]", effective: list[list[int]], grid_size: int | None) -> str:
    """Returns, per layer, the grid of shifts with the head that serves each and its share of attention there."""
    from attn_cnn_jax.analysis.assignment import largest_assignment
    from attn_cnn_jax.analysis.heads import COVERED, effective_text, grid_shifts

    parts = []
    for layer, (of_layer, counts) in enumerate(zip(statistics, effective, strict=True), start=1):
        shifts = grid_shifts(len(of_layer.entropy), grid_size)
        size, cells, covered = math.isqrt(len(shifts)), [], 0
        shares = of_layer.shift_mass
        heads = largest_assignment(shares + len(shares) * (shares >= COVERED))  # first as many covered as there can be
        for n, ((row, column), head) in enumerate(zip(shifts, heads, strict=True)):
            share = shares[head, n] if head >= 0 else 0.0
            covered += share >= COVERED
            cells.append(f"({row:+d},{column:+d}) " + (f"head {head + 1} {share:4.0%}" if head >= 0 else "no head"))
        of_all = f"{covered} of {len(shifts)} shifts of the {size}x{size} grid covered"
        parts.append(f"layer {layer}: {of_all}; Lemma 3: residual {of_layer.span_residual:.3f}")
        parts.append(effective_text(counts, len(of_layer.entropy)))
        parts.append(table([cells[n : n + size] for n in range(0, len(cells), size)], left=size))
    return "\n".join(parts)
