"""A report as text for a terminal: what was measured, and tables of its rows."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_cnn_jax.instrument.layer import Layer
from attn_cnn_jax.output import table

# Columns of tables, as printed: lengths and nats with two digits, whole numbers with a sign, the others are shares.
LENGTHS = ("centre_interior_row", "centre_interior_column", "spread_major", "distance", "entropy", "lemma_3_residual")
SHIFTS = ("shift_row", "shift_column")
HIDDEN = ("centre_all_row", "centre_all_column", "spread_minor", "angle_degrees", "mass_at_centre", "covered")
NEAREST = ("layer", "head", *SHIFTS, "shift_share", "kernel_error", "relative", "absolute", "content", "error")
THRESHOLDS = (0.01, 0.3, 0.5)
WIDTH = 100


def opening(layers: Sequence[Layer], images: int, notes: Sequence[str]) -> list[str]:
    """What was measured, and how sure it is."""
    photos, grids = layers[0].anatomy.photos, list(dict.fromkeys(layer.grid for layer in layers))
    sizes = ", ".join(f"{rows}x{columns}" for rows, columns in grids)
    windows = max(layer.layout.windows for layer in layers)
    where = "patches of windows" if windows > 1 else "patches"
    text = [f"attention over {sizes} {where}, {images} image{'s' * (images > 1)}"]
    shares = np.concatenate([layer.prefix_share for layer in layers])
    others = max((layer.layout.others for layer in layers), key=len).tolist()
    if others:
        which = f"token{'s' * (len(others) > 1)} {others[0]}" + (f" to {others[-1]}" if len(others) > 1 else "")
        had = f"they had {shares.mean():.1%} of the attention (at most {shares.max():.1%})"
        text.append(f"class and register tokens left out ({which}): {had}")
    if images == 1:
        text.append("one image: what is its content counts as place")
    elif layers[0].anatomy.errors is None:
        text.append(f"{images} images: shares without errors, which take three images, or photos of groups=")
    elif photos < 8:
        of = f" of {photos} photos" if photos < images else ""
        text.append(f"{images} images{of}: errors from fewer than 8 are themselves uncertain")
    return [line for part in [*text, *notes] for line in textwrap.wrap(part, WIDTH, subsequent_indent="  ")]


def as_text(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a table for a terminal: most columns of rows, lengths with two digits, shares in per cent."""

    def cell(name: str, value: Any) -> str:
        if isinstance(value, str | int):
            return str(value)
        if name in SHIFTS:
            return f"{value:+.0f}"
        return f"{value:z.2f}" if name in LENGTHS else f"{value:z.1%}"

    cells = [[cell(*item) for item in row.items() if item[0] not in HIDDEN] for row in rows]
    headers = [name.replace("lemma_3", "lemma 3").replace("_", "\n") for name in rows[0] if name not in HIDDEN]
    return table(cells, headers, left=0)
