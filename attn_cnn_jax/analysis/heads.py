"""Statistics of what every head attends to, and which shifts of a convolution's grid a layer covers.

From attention alone, whatever the encoding; means over query pixels and, where attention depends on content, over test
images. Pixels are those that attention works on, after the down-sampling; entropy is in nats.

The centre of a head has three readings, which differ because softmax cannot look outside the image:

- parameter: the trained centre `Delta` of a quadratic encoding, without any border;
- interior: the centre of mass of the attention, mean over interior queries, which `interior_queries` defines;
- all: the same over all query pixels. Queries at the border pull it towards zero.
"""

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from attn_cnn_jax.analysis import images
from attn_cnn_jax.analysis.assignment import largest_assignment
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import pruning
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem import span

SPAN_QUERIES = 16  # at most, of the interior: enough for a mean
COVERED = 0.5  # share of its attention that a head must have on a shift to cover it


class Statistics(NamedTuple):
    """Arrays over the heads of one layer, averaged over query pixels and images."""

    centre: np.ndarray  # (h, 2) pixels, row first: centre of mass of the shift key - query
    interior_centre: np.ndarray  # (h, 2) the same, over interior queries
    covariance: np.ndarray  # (h, 2, 2) square pixels, of the key within one query's attention
    entropy: np.ndarray  # (h,) nats
    distance: np.ndarray  # (h,) pixels: mean |key - query|
    mass_at_centre: np.ndarray  # (h,) share of the attention in the pixel nearest to its centre
    within: np.ndarray  # (h,) share of the attention on the 3x3 pixels around the query
    shift_mass: np.ndarray  # (h, n) share of the attention on each shift of a grid, of the queries where it is inside
    span_residual: float  # of the layer: distance of these shifts from the span of its maps, interior queries


def layer_statistics(
    probabilities: np.ndarray, shifts: np.ndarray, queries: Iterable[tuple[int, int]] | None = None
) -> Statistics:
    """Returns the statistics of one layer from its attention, of any network.

    Args:
      probabilities: `(h, i, j, k, l)`, or `(b, h, i, j, k, l)` of several images; sums to one over keys.
      shifts: `(n, 2)` integers, for `shift_mass`; there, a query counts for the shifts that stay inside.
      queries: the query pixels to average over; None for all. `interior_centre` does not depend on it.
    """
    probabilities = probabilities[None] if probabilities.ndim == 5 else probabilities
    height, width = probabilities.shape[2:4]
    queries = [(i, j) for i in range(height) for j in range(width)] if queries is None else list(queries)
    inner = interior_queries((height, width))
    interior_centre = sum(moments.centre_of_mass(probabilities[:, :, i, j]).mean(axis=0) - (i, j) for i, j in inner)
    sums = [0.0] * 6
    masses, counts = np.zeros((probabilities.shape[1], len(shifts))), np.zeros(len(shifts))
    for i, j in queries:
        attention = moments.normalised(probabilities[:, :, i, j])
        centre, covariance = moments.centre_of_mass(attention) - (i, j), moments.covariance(attention)
        scalars = moments.entropy(attention), moments.distance(attention, (i, j)), moments.mass_at_centre(attention)
        within = attention[:, :, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2].sum(axis=(-2, -1))
        sums = [total + of.mean(axis=0) for total, of in zip(sums, (centre, covariance, *scalars, within), strict=True)]
        rows, columns = i + shifts[:, 0], j + shifts[:, 1]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        masses[:, inside] += attention[:, :, rows[inside], columns[inside]].mean(axis=0)
        counts += inside
    shift_mass = np.divide(masses, counts, out=np.zeros_like(masses), where=counts > 0)
    centre, *others = (total / len(queries) for total in sums)
    some = some_interior_queries((height, width))
    residual = np.mean([span.residuals(attention, shifts, some).mean() for attention in probabilities])
    return Statistics._make([centre, interior_centre / len(inner), *others, shift_mass, float(residual)])


def interior_queries(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns the query pixels at least a quarter of the image's side away from its border.

    They are the middle 4x4 of 8x8 pixels, and the middle 8x8 of 16x16; in small images at least the middle.
    """
    margins = [min(-(-size // 4), (size - 1) // 2) for size in grid]
    rows, columns = (range(margin, size - margin) for margin, size in zip(margins, grid, strict=True))
    return [(i, j) for i in rows for j in columns]


def some_interior_queries(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns at most SPAN_QUERIES of the interior queries, spread over all of them."""
    inner = interior_queries(grid)
    return inner[:: -(-len(inner) // SPAN_QUERIES)]


def run_statistics(
    run: Run,
    *,
    num_images: int | None = None,
    query: tuple[int, int] | None = None,
    grid_size: int | None = None,
    data_dir: str | Path | None = None,
) -> list[Statistics]:
    """Returns the statistics of every layer of a run, from one query pixel or over all.

    Where attention depends on content, over `num_images` test images, `images.AVERAGED` by default. `grid_size` is K of
    the K x K shifts for `shift_mass`, by default of the largest square of heads.

    UserError for a network without attention, a query or a grid outside the image, or data that is not there.
    """
    grid = images.grid(run)
    if query is not None:
        check_query(query, grid)
    largest = 2 * max(grid) - 1
    if grid_size is not None and not 1 <= grid_size <= largest:
        raise UserError(f"--grid={grid_size}: allowed is 1 to {largest}, all shifts between two pixels")
    total, count, queries = None, 0, None if query is None else [query]
    for layers in images.attention_batches(run, num_images, data_dir):
        found = [layer_statistics(layer, grid_shifts(layer.shape[1], grid_size), queries) for layer in layers]
        number = len(layers[0])
        weighted = jax.tree.map(functools.partial(np.multiply, number), found)
        total = weighted if total is None else jax.tree.map(np.add, total, weighted)
        count += number
    return jax.tree.map(lambda value: value / count, total)


def check_query(query: tuple[int, int], grid: tuple[int, int]) -> None:
    """Raises UserError unless a query pixel is inside the image."""
    if not all(0 <= position < size for position, size in zip(query, grid, strict=True)):
        raise UserError(
            f"query {query[0]},{query[1]}: allowed is ROW,COLUMN from 0,0 to {grid[0] - 1},{grid[1] - 1}, "
            "in pixels after the down-sampling"
        )


def grid_shifts(num_heads: int, grid_size: int | None = None) -> np.ndarray:
    """Returns the shifts of a K x K kernel, `(K^2, 2)`; by default of the largest with `K^2 <= num_heads`."""
    size = math.isqrt(num_heads) if grid_size is None else grid_size
    return kernel_shifts((size, size))


def grid_coverage(shift_mass: np.ndarray) -> np.ndarray:
    """Returns the head that serves each shift, `(n,)`, each at most once; -1 where heads run out.

    It is the assignment with the largest total attention, given each head's share on each shift, `(h, n)`.
    """
    return largest_assignment(shift_mass)


def reasons(run: Run, layer: int, statistics: Statistics) -> list[str]:
    """Returns why each head of a layer is degenerate; "" for those that are not.

    By the criteria of its encoding; with content, by its attention itself: uniform attention is degenerate.
    """
    attention, grid = run.model.blocks[layer].attention, images.grid(run)
    if attention.depends_on_content:
        return [pruning.uniform(value, grid) for value in statistics.entropy]
    found = pruning.reasons(attention.position, grid)
    return [found.get(head, "") for head in range(attention.num_heads)]


def measures(found: Statistics, averaged: str = "all") -> dict[str, np.ndarray]:
    """Returns the measures of a layer's heads by name, `(h,)` each, with lengths in pixels.

    `averaged` names the queries that the statistics are means over. `angle_degrees` is that of the major axis, from the
    row axis (down) towards the column axis (right).
    """
    spreads, directions = moments.main_axes(found.covariance)
    return {
        "centre_interior_row": found.interior_centre[:, 0],
        "centre_interior_column": found.interior_centre[:, 1],
        f"centre_{averaged}_row": found.centre[:, 0],
        f"centre_{averaged}_column": found.centre[:, 1],
        "spread_major": spreads[:, 0],
        "spread_minor": spreads[:, 1],
        "angle_degrees": np.degrees(np.arctan2(directions[:, 1], directions[:, 0])).round(6) % 180,
        "entropy": found.entropy,
        "distance": found.distance,
        "mass_at_centre": found.mass_at_centre,
    }


def rows(run: Run, statistics: list[Statistics], query: tuple[int, int] | None = None) -> list[dict]:
    """Returns the table of what `run_statistics` found; layers and heads count from 1, as in the paper.

    `query` is the one query pixel that it is of, None where it has means over all. The columns say which.
    """
    table = []
    for layer, found in enumerate(statistics):
        position, why = run.model.blocks[layer].attention.position, reasons(run, layer, found)
        centres = [("", "")] * len(why)
        if isinstance(position, CentredEncoding):
            centres = np.asarray(position.centre[...], np.float64).tolist()
        columns = measures(found, "all" if query is None else "query")
        for head, (row, column) in enumerate(centres):
            table.append({"layer": layer + 1, "head": head + 1})
            table[-1] |= {"centre_parameter_row": row, "centre_parameter_column": column}
            table[-1] |= {name: values[head] for name, values in columns.items()} | {"degenerate": why[head]}
    return table
