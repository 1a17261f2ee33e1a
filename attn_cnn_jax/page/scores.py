"""What the page computes attention scores from: parameters of the encodings, today's and those recorded in training.

One table over their classes. An encoding that is not in it, or that changes scores of the class that is, gets the
generic answer: position scores as a table, read off `position_terms`; content scores none, and the page then keeps
attention to a few images in their place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.encoding import Encoding
from attn_cnn_jax.models.encodings import Absolute, CentredEncoding, Content, GeneralizedQuadratic, Quadratic, Relative
from attn_cnn_jax.runs.positions import evenly

MOST_PAIRS = 2**20  # scores of heads and pairs of pixels in a table that is not by shift
KINDS = {1: "quadratic", 3: "gaussian"}  # by the axes of spreads
MOST_EPOCHS = 120  # 1 kB each; a slider of a few hundred pixels hardly tells more apart
SMALLEST_VARIANCE = 0.05**2  # of attention to a single pixel, whose covariance has no inverse
LOWEST = -1e30  # stands for minus infinity, which JSON does not have

Parameters = dict[str, Any]
Table = Mapping[type[Encoding], Callable[[Any, Grid], Parameters]]


def position_parameters(encoding: Encoding, grid: Grid) -> Parameters | None:
    """What the page computes position scores from; None where there are none.

    `term` (its name), `kind`, and arrays by kind: "axes": `row` `(h, 2 H - 1)` and `column` `(h, 2 W - 1)`, which add
    up; "shifts": `table` `(h, 2 H - 1, 2 W - 1)`, both from the most negative shift; "pixels": `table` `(h, H W, H W)`,
    query by key; "quadratic" and "gaussian": `centre` `(h, 2)` and `spread`, `(h,)` and `(h, 2, 2)`: `S` of the score
    `-1/2 |S^T (shift - centre)|^2`. UserError if the scores depend on more than the shift, and are too many to list.
    """
    described = entry(POSITION, encoding, {"axis_scores", "position_terms"})
    return described(encoding, grid) if described else score_table(encoding, grid)


def content_parameters(encoding: Encoding, grid: Grid) -> Parameters | None:
    """What the page computes content scores from; None where it cannot.

    `query` and `key`: `kernel` `(D, h D_h)` and `bias` or None, each None where no term reads it; and `terms`, by the
    paper's names, of a `kind`: "product": `q . k / sqrt(D_h)`; "shifts": `q . (row[delta_row] + column[delta_column])`,
    with `row` `(h, 2 H - 1, D_h)` and `column` `(h, 2 W - 1, D_h)` from the most negative shift; "keys": `bias . k`,
    with `bias` `(h, D_h)`. A product says of its `query` and `key` what they read: "content", activations, or
    "position": `positions` `(H, W, D)`, by the same map.
    """
    described = entry(CONTENT, encoding, {"project", "content_terms"})
    return described(encoding, grid) if described else None


def entry(table: Table, encoding: Encoding, methods: set[str]) -> Callable[[Any, Grid], Parameters] | None:
    """The entry of the nearest class, None without one or where a class below it has scores of its own."""
    for parent in type(encoding).__mro__:
        if parent in table:
            return table[parent]
        if methods & set(vars(parent)):
            return None
    return None


def gaussian(encoding: CentredEncoding, grid: Grid) -> Parameters:
    spread = encoding.spread[...]
    return {"term": "position", "kind": KINDS[spread.ndim], "centre": encoding.centre[...], "spread": spread}


PRODUCT = {"kind": "product", "query": "content", "key": "content"}  # q . k of activations


def content_maps(encoding: Any, terms: Parameters) -> Parameters:
    return {"query": linear(encoding.query), "key": linear(encoding.key), "terms": terms}


def linear(layer: Any) -> Parameters | None:
    """Kernel `(in, out)` and bias of a linear map; None without one."""
    if layer is None:
        return None
    return {"kernel": layer.kernel[...], "bias": None if layer.bias is None else layer.bias[...]}


def absolute_content(encoding: Absolute, grid: Grid) -> Parameters:
    """The four terms of eq. 7."""
    pixels = jnp.zeros((1, *grid, encoding.query.in_features), encoding.query.kernel[...].dtype)
    kinds = ("content", "position")
    terms = {f"{query}_{key}": PRODUCT | {"query": query, "key": key} for query in kinds for key in kinds}
    return content_maps(encoding, terms) | {"positions": encoding.position_vectors(pixels)[0]}


def relative_content(encoding: Relative, grid: Grid) -> Parameters:
    """The terms of eq. 8 that read the image."""
    reach = encoding.tables.grid
    row, column = encoding.position_keys(*reach)
    rows, columns = (slice(size - n, size + n - 1) for size, n in zip(reach, grid, strict=True))
    terms: Parameters = {
        "content_content": PRODUCT,
        "content_position": {"kind": "shifts", "row": row[:, rows], "column": column[:, columns]},
        "position_content": {"kind": "keys", "bias": encoding.content_bias[...] * encoding.head_size**-0.5},
    }
    return content_maps(encoding, terms)


POSITION: Table = {Quadratic: gaussian, GeneralizedQuadratic: gaussian}
CONTENT: Table = {
    Content: lambda encoding, grid: content_maps(encoding, {"content": PRODUCT}),
    Relative: relative_content,
    Absolute: absolute_content,
}


def score_table(encoding: Encoding, grid: Grid) -> Parameters | None:
    """The sum of all position terms as a table: by shift where nothing else counts, else for every pair of pixels."""
    height, width = grid
    some = np.array([0, height // 2, height - 1])
    terms = encoding.position_terms(*grid, jnp.array(some))
    if not terms:
        return None
    name, scores, rows = "_and_".join(terms), summed(terms), some
    pairs = len(scores) * (height * width) ** 2
    if pairs <= MOST_PAIRS:
        rows = np.arange(height)
        scores = summed(encoding.position_terms(*grid, jnp.arange(height)))
    table = by_shift(scores[:, [0, -1]], grid)
    row, column = np.arange(height) - rows[:, None], np.arange(width) - np.arange(width)[:, None]  # key minus query
    expected = table[:, row[:, None, :, None] + height - 1, column[None, :, None, :] + width - 1]
    if not close(expected, scores, 1e-5):
        if pairs > MOST_PAIRS:
            raise UserError(
                "position scores that depend on more than the shift between two pixels: a page holds at most "
                f"{MOST_PAIRS:,} of them per layer, not {pairs:,}; choose a smaller --size"
            )
        return {"term": name, "kind": "pixels", "table": scores.reshape(len(scores), height * width, -1)}
    middle = table[:, [height - 1], :]
    rows_alone = table[:, :, [width - 1]] - middle[:, :, [width - 1]]  # the score of shift zero is in both
    if close(rows_alone + middle, table, 1e-6):
        return {"term": name, "kind": "axes", "row": rows_alone[:, :, 0], "column": middle[:, 0, :]}
    return {"term": name, "kind": "shifts", "table": table}


def summed(terms: Mapping[str, Float[Array, "h i j k l"]]) -> Float[np.ndarray, "h i j k l"]:
    return np.maximum(sum(np.asarray(term, np.float64) for term in terms.values()), LOWEST)


def by_shift(corners: Float[np.ndarray, "h 2 j k l"], grid: Grid) -> Float[np.ndarray, "h r t"]:
    """The score of every shift, from the most negative one, of scores of the first and the last query row.

    Queries in the four corners see all shifts.
    """
    height, width = grid
    rows, columns = np.arange(1 - height, height)[:, None], np.arange(1 - width, width)
    is_last, column = (rows <= 0).astype(int), np.where(columns <= 0, width - 1, 0)  # of the query in that corner
    return corners[:, is_last, column, is_last * (height - 1) + rows, column + columns]


def close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    """Whether scores are the same up to a share of the largest one that is not `LOWEST`."""
    largest = np.abs(b[b > LOWEST]).max(initial=1.0)
    return np.allclose(a, b, rtol=tolerance, atol=tolerance * largest)


def recorded_epochs(records: Sequence[dict], step: int, head_counts: list[int], term: str | None) -> list[dict]:
    """Training up to the checkpoint at a step, oldest first, from the records of positions.jsonl.

    Those of a network with other numbers of heads in its layers are left out. `term` is the name of the score term that
    positions have, None where there is none. Entries have `epoch` and `layers`, with `layers[n].position` as in
    `position_parameters`; the last one is the checkpoint itself, and has `layers` only if it was recorded.
    """
    records = [record for record in records if [len(x.get("centre", ())) for x in record["layers"]] == head_counts]
    if term is None or not records or records[-1]["step"] == 0:
        return []

    def entry(record: dict) -> dict:
        layers = [{"position": {"term": term, **recorded_parameters(layer)}} for layer in record["layers"]]
        return {"epoch": record["epoch"], "layers": layers}

    epoch = round(records[-1]["epoch"] * step / records[-1]["step"], 2)
    last = entry(records.pop()) if records[-1]["step"] == step else {"epoch": epoch}
    return [*map(entry, evenly(records, MOST_EPOCHS)), last]


def recorded_parameters(layer: dict) -> dict:
    """A recorded layer as the parameters of a quadratic encoding, to a thousandth.

    A record of other encodings holds moments of the central pixel's attention; the Gaussian with them stands for it.
    """
    if "covariance" in layer:
        variances, axes = np.linalg.eigh(np.asarray(layer["covariance"], np.float64))
        spread = axes / np.sqrt(np.maximum(variances, SMALLEST_VARIANCE))[:, None, :]  # S S^T inverts the covariance
    else:
        spread = np.asarray(layer["spread"])
    shown = {"centre": np.asarray(layer["centre"]), "spread": spread}
    return {"kind": KINDS[spread.ndim]} | {name: np.round(array, 3).tolist() for name, array in shown.items()}
