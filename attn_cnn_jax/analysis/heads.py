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
from typing import Any, NamedTuple

import jax
import numpy as np

from attn_cnn_jax.analysis import test_images
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import pruning
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem import rank, span

SPAN_QUERIES = 16  # at most, of the interior: enough for a mean
TOLERANCES = (0.01, 0.05, 0.2)  # relative errors at which effective heads are counted
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
    patterns: np.ndarray  # (h, q p) attention of some interior queries, all in a row


def layer_statistics(
    probabilities: np.ndarray,
    shifts: np.ndarray,
    queries: Iterable[tuple[int, int]] | None = None,
    allowed: np.ndarray | None = None,
) -> Statistics:
    """Returns the statistics of one layer from its attention, of any network.

    Args:
      probabilities: `(h, i, j, k, l)`, or `(b, h, i, j, k, l)` of several images; sums to one over keys.
      shifts: `(n, 2)` integers, for `shift_mass`; there, a query counts for the shifts that stay inside.
      queries: the query pixels to average over; None for all. `interior_centre` does not depend on it.
      allowed: `(q, p)`, how much of the images a query has a key in, from 0 to 1: windows may mask it; None for all.
    """
    probabilities = probabilities[None] if probabilities.ndim == 5 else probabilities
    grid = height, width = probabilities.shape[2:4]
    places = np.indices(grid).reshape(2, -1).T  # (p, 2)
    asked = slice(None) if queries is None else np.array([i * width + j for i, j in queries])
    at = places[asked]  # (q, 2)
    inner: Any = np.array(interior_queries(grid)) @ (width, 1)
    some = some_interior_queries(grid)
    moved = places - at[:, None]  # (q, p, 2)
    lengths, near = np.hypot(moved[..., 0], moved[..., 1]), np.abs(moved).max(axis=-1) <= 1
    keys = at[:, None] + shifts  # (q, n, 2)
    query, shift = np.nonzero(((keys >= 0) & (keys < grid)).all(axis=-1))
    key = keys[query, shift] @ (width, 1)
    have = None if allowed is None else allowed[asked][query, key]
    counts = np.bincount(shift, weights=have, minlength=len(shifts))
    of_rows, of_columns = (np.arange(size)[:, None] ** np.arange(3.0) for size in grid)
    of_rows = np.kron(of_rows, np.eye(3))
    tiny = np.finfo(probabilities.dtype).tiny  # added to zero in a logarithm
    mean: Any = None
    total: list[Any] = [0.0] * 5
    for image in probabilities:  # one at a time: an image of a large network has a gigabyte
        narrow = image.reshape(len(image), height * width, -1)
        flat = narrow.astype(np.float64)
        # Sums of row^m column^n times float32, exact in float64 where one pixel has all: it has exactly no spread.
        by_row = (flat.reshape(-1, width) @ of_columns).reshape(-1, 3 * height)
        sums = (by_row @ of_rows).reshape(*flat.shape[:2], 3, 3).transpose(2, 3, 0, 1)
        whole = sums[0, 0]
        flat /= whole[..., None]
        row, column, product, row_row, column_column = (
            sums[m, n] / whole for m, n in ((1, 0), (0, 1), (1, 1), (2, 0), (0, 2))
        )
        centres = np.stack([row, column], axis=-1)
        interior = (centres[:, inner] - places[inner]).mean(axis=1)
        flat, narrow, centre = flat[:, asked], narrow[:, asked], centres[:, asked]
        mean = flat.copy() if mean is None else np.add(mean, flat, out=mean)
        product = product - row * column
        covariance = [[row_row - row**2, product], [product, column_column - column**2]]
        nearest = np.floor(centre + 0.5).astype(int) @ np.array([width, 1])
        logarithms = narrow + tiny  # of float32: a quarter of the time
        np.log(logarithms, out=logarithms)
        of_whole = whole[:, asked]
        entropy = np.log(of_whole) - np.vecdot(narrow, logarithms) / of_whole
        of_images = (
            (centre - at).mean(axis=1),
            interior,
            np.moveaxis(np.array(covariance)[..., asked].mean(axis=-1), -1, 0),
            np.maximum(entropy, 0).mean(axis=1),  # that of one pixel is rounded
            np.take_along_axis(flat, nearest[..., None], axis=-1).mean(axis=(1, 2)),
        )
        total = [so_far + of_image / len(probabilities) for so_far, of_image in zip(total, of_images, strict=True)]
    centre, interior, covariance, entropy, at_centre = total
    residual = span.residuals(probabilities, shifts, some).mean()
    mean = mean / len(probabilities)
    distance, within = (np.einsum("hqp,qp->h", mean, weights) / len(at) for weights in (lengths, near))
    masses = np.zeros((len(shifts), len(mean)))
    np.add.at(masses, shift, mean[:, query, key].T)
    of_shifts = masses.T / np.where(counts > 0, counts, 1)
    patterns = patterns_of(probabilities)
    return Statistics(
        centre, interior, covariance, entropy, distance, at_centre, within, of_shifts, float(residual), patterns
    )


def patterns_of(probabilities: np.ndarray) -> np.ndarray:
    """Returns attention from `some_interior_queries`, mean over images: `(b, h, i, j, k, l) -> (h, n)`."""
    rows, columns = np.array(some_interior_queries(probabilities.shape[2:4])).T
    return probabilities[:, :, rows, columns].mean(axis=0, dtype=np.float64).reshape(probabilities.shape[1], -1)


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

    Where attention depends on content, over `num_images` test images, `AVERAGED` by default. `grid_size` is K of
    the K x K shifts for `shift_mass`, by default of the largest square of heads.

    UserError for a network without attention, a query or a grid outside the image, or data that is not there.
    """
    grid = test_images.grid(run)
    if query is not None:
        check_query(query, grid)
    largest = 2 * max(grid) - 1
    if grid_size is not None and not 1 <= grid_size <= largest:
        raise UserError(f"--grid={grid_size}: allowed is 1 to {largest}, all shifts between two pixels")
    total, count, queries = None, 0, None if query is None else [query]
    for layers in test_images.attention_batches(run, num_images, data_dir):
        by_layer = [layer_statistics(layer, grid_shifts(layer.shape[1], grid_size), queries) for layer in layers]
        number = len(layers[0])
        weighted = jax.tree.map(functools.partial(np.multiply, number), by_layer)
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


def reasons(run: Run, layer: int, statistics: Statistics) -> list[str]:
    """Returns why each head of a layer is degenerate; "" for those that are not.

    By the criteria of its encoding; with content, by its attention itself: uniform attention is degenerate.
    """
    attention, grid = run.model.blocks[layer].attention, test_images.grid(run)
    if attention.depends_on_content:
        return [pruning.uniform(value, grid) for value in statistics.entropy]
    why = pruning.reasons(attention.position, grid)
    return [why.get(head, "") for head in range(attention.num_heads)]


def effective_heads(run: Run, patterns: list[np.ndarray]) -> list[list[int]]:
    """Returns, per layer, how many heads could replace its heads at each of `TOLERANCES`.

    From what `patterns_of` returns for each layer; where attention depends on content, of its mean over images.
    """
    layers = zip(patterns, (block.attention.merged_maps() for block in run.model.blocks), strict=True)
    return [[rank.effective_heads(*layer, tolerance) for tolerance in TOLERANCES] for layer in layers]


def effective_text(counts: list[int], num_heads: int) -> str:
    """Returns what `effective_heads` found for a layer, in words."""
    at = zip(counts, TOLERANCES, strict=True)
    return f"effective heads of {num_heads}: " + ", ".join(f"{count} at {tolerance:.0%}" for count, tolerance in at)


def measures(statistics: Statistics, averaged: str = "all") -> dict[str, np.ndarray]:
    """Returns the measures of a layer's heads by name, `(h,)` each, with lengths in pixels.

    `averaged` names the queries that the statistics are means over. `angle_degrees` is that of the major axis, from the
    row axis (down) towards the column axis (right).
    """
    spreads, directions = moments.main_axes(statistics.covariance)
    return {
        "centre_interior_row": statistics.interior_centre[:, 0],
        "centre_interior_column": statistics.interior_centre[:, 1],
        f"centre_{averaged}_row": statistics.centre[:, 0],
        f"centre_{averaged}_column": statistics.centre[:, 1],
        "spread_major": spreads[:, 0],
        "spread_minor": spreads[:, 1],
        "angle_degrees": np.degrees(np.arctan2(directions[:, 1], directions[:, 0])).round(6) % 180,
        "entropy": statistics.entropy,
        "distance": statistics.distance,
        "mass_at_centre": statistics.mass_at_centre,
    }


def rows(run: Run, statistics: list[Statistics], query: tuple[int, int] | None = None) -> list[dict]:
    """Returns the table of what `run_statistics` found; layers and heads count from 1, as in the paper.

    `query` is the one query pixel that it is of, None where it has means over all. The columns say which.
    """
    table = []
    for layer, of_layer in enumerate(statistics):
        position, why = run.model.blocks[layer].attention.position, reasons(run, layer, of_layer)
        centres = [("", "")] * len(why)
        if isinstance(position, CentredEncoding):
            centres = np.asarray(position.centre[...], np.float64).tolist()
        columns = measures(of_layer, "all" if query is None else "query")
        for head, (row, column) in enumerate(centres):
            table.append({"layer": layer + 1, "head": head + 1})
            table[-1] |= {"centre_parameter_row": row, "centre_parameter_column": column}
            table[-1] |= {name: values[head] for name, values in columns.items()} | {"degenerate": why[head]}
    return table
