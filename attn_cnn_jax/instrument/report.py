"""The report: anatomy, the paper's measures, and what replacing heads by convolutions costs, head by head."""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.analysis.heads import COVERED, Statistics, grid_shifts, layer_statistics, measures
from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.instrument import anatomy as parts
from attn_cnn_jax.instrument.attention import as_layers, best_kernel, over_patches, replace_heads, watch
from attn_cnn_jax.output import csv_text, table
from attn_cnn_jax.theorem.to_convolution import mass_outside

# Columns of the table of heads, as printed: lengths and nats, the others are shares.
LENGTHS = ("centre_interior_row", "centre_interior_column", "spread_major", "distance", "entropy", "lemma_3_residual")
HIDDEN = ("centre_all_row", "centre_all_column", "spread_minor", "angle_degrees", "mass_at_centre")


@dataclasses.dataclass(frozen=True)
class Report:
    """What `inspect` found; layers and heads count from 0 in arrays, from 1 in `rows` and in text.

    Attributes:
      grid: rows and columns of patches.
      attention: by layer `(b, h, q, p)` between patches, rows sum to 1.
      prefix_share: by layer `(h,)`, the share of attention that class and register tokens had.
      anatomies: by layer, see instrument/anatomy.py.
      statistics: by layer, the paper's measures, see analysis/heads.py.
      kernel_size: K of `kernel_error`, `within` and `replaced`.
      within: by layer `(h,)`, the share of attention within K x K, mean over queries whose window is inside the grid.
      kernel_error: by layer `(h,)`, relative error of the attention (mean over images) as its best K x K kernel.
      differences: by layer, of averages computed again from attention and values, relative; () for arrays.
      output_change: by layer `(h,)`, of a head's averages of values with its kernel in its place, relative; or ().
      replaced: for some numbers of `heads` replaced, cheapest first, a row: the largest change of `logits`, relative to
        the largest; `accuracy`, the share of images with the right class, or without labels with the network's own;
        `saved`, the share of the multiply-adds of scores and averages that convolutions save. () for arrays.
    """

    grid: Grid
    attention: list[Float[np.ndarray, "b h q p"]]
    prefix_share: list[Float[np.ndarray, " h"]]
    anatomies: list[parts.Anatomy]
    statistics: list[Statistics]
    kernel_size: int
    within: list[Float[np.ndarray, " h"]]
    kernel_error: list[Float[np.ndarray, " h"]]
    differences: Sequence[float] = ()
    output_change: Sequence[Float[np.ndarray, " h"]] = ()
    replaced: Sequence[dict[str, float]] = ()

    @property
    def anatomy(self) -> Float[np.ndarray, "layers h 3"] | list[Float[np.ndarray, "h 3"]]:
        """Shares relative, absolute, content of every head; a list where layers differ in their heads."""
        shares = [layer.shares for layer in self.anatomies]
        return np.stack(shares) if len({len(layer) for layer in shares}) == 1 else shares

    def convolutions(self, error: float = 0.01) -> list[tuple[int, int]]:
        """Returns layer and head of those whose attention is a K x K kernel up to a relative error."""
        return [(n, h) for n, layer in enumerate(self.kernel_error) for h in np.flatnonzero(layer <= error).tolist()]

    def rollout(self) -> Float[np.ndarray, "b q p"]:
        """Attention rollout: the product over layers of the mean over heads, half of each layer passing by."""
        result = passing = np.eye(math.prod(self.grid))
        for layer in self.attention:
            result = (layer.mean(axis=1) + passing) / 2 @ result
        return result

    def columns(self, layer: int) -> dict[str, Float[np.ndarray, " h"]]:
        """Returns the measures of a layer's heads: lengths in patches, entropy in nats, shares from 0 to 1."""
        anatomy, statistics = self.anatomies[layer], self.statistics[layer]
        found = dict(zip(parts.PARTS, anatomy.shares.T, strict=True)) | {"error": anatomy.errors.max(axis=1)}
        found |= measures(statistics) | {"within": self.within[layer]}
        found |= {"kernel_error": self.kernel_error[layer], "prefix_share": self.prefix_share[layer]}
        return found | ({"output_change": self.output_change[layer]} if self.replaced else {})

    def rows(self) -> list[dict[str, Any]]:
        """Returns `columns` as one dictionary per head."""
        return [
            {"layer": n + 1, "head": head + 1} | {name: float(values[head]) for name, values in self.columns(n).items()}
            for n, errors in enumerate(self.kernel_error)
            for head in range(len(errors))
        ]

    def layers(self) -> list[dict[str, Any]]:
        """Returns one dictionary per layer: means over heads, Lemma 3's residual, coverage of the K x K grid."""
        found = []
        for n, measured in enumerate(self.statistics):
            columns, names = self.columns(n), (*parts.PARTS, "distance", "within")
            mean = {name: float(columns[name].mean()) for name in names}
            covered = f"{(measured.shift_mass.max(axis=0) >= COVERED).sum()} of {self.kernel_size**2}"
            found.append({"layer": n + 1} | mean | {"lemma_3_residual": measured.span_residual, "covered": covered})
        return found

    def to_csv(self, path: str | Path) -> None:
        """Writes `rows` as comma-separated values."""
        write_atomically(Path(path), csv_text(self.rows()))

    def to_json(self, path: str | Path) -> None:
        """Writes grid, heads, layers and the cost of replacing heads."""
        whole = {"grid": self.grid, "kernel_size": self.kernel_size, "heads": self.rows(), "layers": self.layers()}
        write_atomically(Path(path), json.dumps(whole | {"replaced": list(self.replaced)}, indent=1) + "\n")

    def __str__(self) -> str:
        images, size = len(self.attention[0]), f"{self.kernel_size}x{self.kernel_size}"
        heads, shares = self.rows(), np.concatenate(self.prefix_share)
        text = [f"attention over {self.grid[0]}x{self.grid[1]} patches, {images} image{'s' * (images > 1)}"]
        if shares.max() > 0:
            had = f"they had {shares.mean():.1%} of the attention (at most {shares.max():.1%})"
            text.append(f"class and register tokens left out: {had}")
        text += ["", as_text(heads), "", as_text(self.layers()), ""]
        text.append(f"{len(self.convolutions())} of {len(heads)} heads are {size} kernels up to 1%")
        if images == 1:
            text.append("one image: what is its content counts as place")
        if self.replaced:
            text.append(f"averages computed again from attention and values: within {max(self.differences):.1e}")
            text += ["", f"heads as {size} convolutions, cheapest first:", as_text(self.replaced)]
        return "\n".join(text)


def as_text(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a table for a terminal: most columns of rows, lengths with two digits, shares in per cent."""

    def cell(name: str, value: Any) -> str:
        if isinstance(value, str | int):
            return str(value)
        return f"{value + 0:.2f}" if name in LENGTHS else f"{max(value, 0):.1%}"

    cells = [[cell(*item) for item in row.items() if item[0] not in HIDDEN] for row in rows]
    return table(cells, [name.replace("_", "\n") for name in rows[0] if name not in HIDDEN], left=0)


def inspect(
    attention_or_model: Any,
    images: Any = None,
    *,
    grid: Grid | None = None,
    prefix: int | None = None,
    kernel_size: int = 3,
    labels: Int[Any, " b"] | None = None,
) -> Report:
    """Says how convolutional the attention of a network is.

    Args:
      attention_or_model: attention as arrays, `(layers, images, heads, q, k)` or a list of `(images, heads, q, k)`
        per layer, of NumPy, JAX or PyTorch; or a network: a run of `load_run`, a Flax NNX network with
        `nnx.MultiHeadAttention` or this package's layers, a PyTorch network (timm, torchvision, Hugging Face's ViT).
        It stays as it is.
      images: of a network, as it takes them.
      grid: rows and columns of patches; None for a square.
      prefix: class and register tokens before the patches, which are left out; None for all that the grid leaves.
      kernel_size: K of the kernels that heads are compared with.
      labels: classes of the images, for the accuracy with heads replaced; None compares with the network's own.

    Raises:
      UserError: for what is not attention over a grid.
    """
    watched, given = None, attention_or_model
    if not hasattr(given, "shape") and not isinstance(given, list | tuple):
        if images is None:
            raise UserError("give images, as the network takes them: inspect(model, images)")
        watched = watch(given, images)
    layers = as_layers([layer.attention for layer in watched[1]] if watched else given)
    grid, between, shares = over_patches(layers, grid, prefix)
    if not 1 <= kernel_size <= 2 * min(grid) - 1:
        raise UserError(f"kernel_size={kernel_size}: allowed is 1 to {2 * min(grid) - 1}, all shifts of this grid")
    anatomies = [parts.anatomy(layer, grid) for layer in between]
    means = [layer.mean(axis=0) for layer in between]
    kernels = [best_kernel(mean, of.profile, grid, kernel_size) for mean, of in zip(means, anatomies, strict=True)]
    norm = functools.partial(np.linalg.norm, axis=(1, 2))
    errors = [norm(kernel - mean) / norm(mean) for kernel, mean in zip(kernels, means, strict=True)]
    shifts = grid_shifts(1, kernel_size)
    statistics = [layer_statistics(layer.reshape(*layer.shape[:2], *grid, *grid), shifts) for layer in between]
    outside = [mass_outside(mean.reshape(-1, *grid, *grid), kernel_size) for mean in means]
    within = [1 - np.asarray(of_layer, np.float64) for of_layer in outside]
    report = Report(grid, between, shares, anatomies, statistics, kernel_size, within, errors)
    if watched is None:
        return report
    change, replaced = replace_heads(given, images, watched, kernels, kernel_size, labels)
    differences = [layer.difference for layer in watched[1]]
    return dataclasses.replace(report, differences=differences, output_change=change, replaced=replaced)
