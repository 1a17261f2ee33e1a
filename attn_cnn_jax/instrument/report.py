"""The report: anatomy, the paper's measures, and what replacing heads by convolutions costs, head by head."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from tabulate import tabulate

from attn_cnn_jax.analysis import anatomy as parts
from attn_cnn_jax.analysis.heads import Statistics, grid_coverage, grid_shifts, layer_statistics
from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.instrument import inputs
from attn_cnn_jax.instrument.networks import watch
from attn_cnn_jax.instrument.replaced import Replaced, best_kernel, measure
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.output import csv_text

COVERED = 0.5  # share of its attention that a head must have on a shift to cover it
KERNEL_SIZE = 3


@dataclasses.dataclass(frozen=True)
class Report:
    """What `inspect` found; layers and heads count from 0 in arrays, from 1 in `rows` and in text.

    Attributes:
      grid: rows and columns of patches.
      attention: by layer `(b, h, q, p)` between patches, rows sum to 1.
      prefix_share: by layer `(h,)`, the share of attention that class and register tokens had.
      anatomies: by layer, see analysis/anatomy.py.
      statistics: by layer, the paper's measures, see analysis/heads.py.
      kernel_size: K of `kernel_error`, `within` and `replaced`.
      kernel_error: by layer `(h,)`, relative error of the attention (mean over images) as its best K x K kernel.
      differences: by layer, of averages computed again from attention and values, relative; () for arrays.
      replaced: what replacing heads costs; None for arrays.
    """

    grid: Grid
    attention: list[Float[np.ndarray, "b h q p"]]
    prefix_share: list[Float[np.ndarray, " h"]]
    anatomies: list[parts.Anatomy]
    statistics: list[Statistics]
    kernel_size: int
    kernel_error: list[Float[np.ndarray, " h"]]
    differences: Sequence[float] = ()
    replaced: Replaced | None = None

    @property
    def anatomy(self) -> Float[np.ndarray, "layers h 3"] | list[Float[np.ndarray, "h 3"]]:
        """Shares relative, absolute, content of every head; a list where layers differ in their heads."""
        shares = [layer.shares for layer in self.anatomies]
        return np.stack(shares) if len({len(layer) for layer in shares}) == 1 else shares

    @property
    def within(self) -> list[Float[np.ndarray, " h"]]:
        """By layer, the share of attention within K x K, mean over the queries whose window is inside."""
        return [layer.shift_mass.sum(axis=1) for layer in self.statistics]

    def convolutions(self, error: float = 0.01) -> list[tuple[int, int]]:
        """Returns layer and head of those whose attention is a K x K kernel up to a relative error."""
        return [(n, h) for n, layer in enumerate(self.kernel_error) for h in np.flatnonzero(layer <= error).tolist()]

    def rollout(self) -> Float[np.ndarray, "b q p"]:
        """Attention rollout: the product over layers of the mean over heads, half of each layer passing by."""
        result = np.eye(math.prod(self.grid))
        for layer in self.attention:
            result = (0.5 * layer.mean(axis=1) + 0.5 * np.eye(layer.shape[-1])) @ result
        return result

    def rows(self) -> list[dict[str, Any]]:
        """Returns one dictionary per head; centre and spread in patches, entropy in nats, shares from 0 to 1."""
        table = []
        for n, (anatomy, measured) in enumerate(zip(self.anatomies, self.statistics, strict=True)):
            spreads, _ = moments.main_axes(measured.covariance)
            for head, shares in enumerate(anatomy.shares):
                row = {"layer": n + 1, "head": head + 1} | dict(zip(parts.PARTS, map(float, shares), strict=True))
                row |= {
                    "error": float(anatomy.errors[head].max()),
                    "centre_row": float(measured.interior_centre[head, 0]),
                    "centre_column": float(measured.interior_centre[head, 1]),
                    "spread": float(spreads[head].mean()),
                    "distance": float(measured.distance[head]),
                    "entropy": float(measured.entropy[head]),
                    "within": float(self.within[n][head]),
                    "kernel_error": float(self.kernel_error[n][head]),
                    "prefix_share": float(self.prefix_share[n][head]),
                }
                if self.replaced:
                    row["output_change"] = float(self.replaced.change[n][head])
                table.append(row)
        return table

    def layers(self) -> list[dict[str, Any]]:
        """Returns one dictionary per layer: means over heads, Lemma 3's residual, coverage of the K x K grid."""
        table = []
        for n, (anatomy, measured) in enumerate(zip(self.anatomies, self.statistics, strict=True)):
            shifts, served = measured.shift_mass.shape[1], grid_coverage(measured.shift_mass)
            covered = sum(h >= 0 and measured.shift_mass[h, shift] >= COVERED for shift, h in enumerate(served))
            row = {"layer": n + 1} | dict(zip(parts.PARTS, map(float, anatomy.shares.mean(axis=0)), strict=True))
            row |= {
                "distance": float(measured.distance.mean()),
                "within": float(self.within[n].mean()),
                "lemma_3_residual": measured.span_residual,
                "covered": f"{covered} of {shifts}",
            }
            table.append(row)
        return table

    def to_csv(self, path: str | Path) -> None:
        """Writes `rows` as comma-separated values."""
        write_atomically(Path(path), csv_text(self.rows()))

    def to_json(self, path: str | Path) -> None:
        """Writes grid, heads, layers and the cost of replacing heads."""
        replaced = self.replaced and {
            name: [np.asarray(each).tolist() for each in value] if isinstance(value, list) else value
            for name, value in self.replaced._asdict().items()
        }
        whole = {"grid": self.grid, "kernel_size": self.kernel_size, "heads": self.rows(), "layers": self.layers()}
        write_atomically(Path(path), json.dumps(whole | {"replaced": replaced}, indent=1) + "\n")

    def __str__(self) -> str:
        images, size = len(self.attention[0]), f"{self.kernel_size}x{self.kernel_size}"
        text = [f"attention over {self.grid[0]}x{self.grid[1]} patches, {images} image{'s' * (images > 1)}"]
        if (share := max(layer.max() for layer in self.prefix_share)) > 0:
            mean = np.mean([layer.mean() for layer in self.prefix_share])
            text.append(
                f"class and register tokens left out: they had {mean:.1%} of the attention (at most {share:.1%})"
            )
        heads = [
            {name: shown(name, value) for name, value in row.items()} | ({} if images > 1 else {"content": "-"})
            for row in self.rows()
        ]
        layers = [{name: shown(name, value) for name, value in row.items()} for row in self.layers()]
        text += [
            "",
            *(tabulate(table, "keys", "plain", disable_numparse=True, stralign="right") for table in (heads, layers)),
            "",
        ]
        text.append(f"{len(self.convolutions())} of {len(heads)} heads are {size} kernels up to 1%")
        if self.differences:
            text.append(f"averages computed again from attention and values: within {max(self.differences):.1e}")
        if self.replaced:
            costs = zip(
                self.replaced.counts, self.replaced.logits, self.replaced.accuracy, self.replaced.saved, strict=True
            )
            names = ("replaced heads", "change of logits", "accuracy", "attention saved")
            cells = [[count, f"{logits:.1e}", f"{right:.1%}", f"{saved:.0%}"] for count, logits, right, saved in costs]
            text += ["", f"heads as {size} convolutions, cheapest first:", tabulate(cells, names, "plain")]
        return "\n".join(text)


def shown(name: str, value: Any) -> str:
    """Returns a value of a table as text: shares in per cent."""
    if isinstance(value, str | int):
        return str(value)
    lengths = ("centre_row", "centre_column", "spread", "distance", "entropy", "lemma_3_residual")
    return f"{value + 0:.2f}" if name in lengths else f"{max(value, 0):.1%}"


def inspect(
    attention_or_model: Any,
    images: Any = None,
    *,
    grid: Grid | None = None,
    prefix: int | None = None,
    kernel_size: int = KERNEL_SIZE,
    labels: Int[Any, " b"] | None = None,
) -> Report:
    """Says how convolutional the attention of a network is.

    Args:
      attention_or_model: attention as arrays, `(layers, images, heads, q, k)` or a list of `(images, heads, q, k)`
        per layer, of NumPy, JAX or PyTorch; or a network: a run of `load_run`, a Flax NNX network with
        `nnx.MultiHeadAttention`, a PyTorch network (timm, torchvision, Hugging Face's ViT). It stays as it is.
      images: of a network, as it takes them.
      grid: rows and columns of patches; None for a square.
      prefix: class and register tokens before the patches, which are left out; None for all that the grid leaves.
      kernel_size: K of the kernels that heads are compared with.
      labels: classes of the images, for the accuracy with heads replaced; None compares with the network's own.

    Raises:
      UserError: for what is not attention over a grid.
    """
    if hasattr(attention_or_model, "shape") or isinstance(attention_or_model, list | tuple):
        watched, layers = None, inputs.as_layers(attention_or_model)
    elif images is None:
        raise UserError("give images, as the network takes them: inspect(model, images)")
    else:
        watched = watch(attention_or_model, images)
        layers = [layer.attention for layer in watched.layers]
    grid = inputs.find_grid([layer.shape[-1] for layer in layers], grid, prefix)
    if not 1 <= kernel_size <= 2 * min(grid) - 1:
        raise UserError(f"kernel_size={kernel_size}: allowed is 1 to {2 * min(grid) - 1}, all shifts of this grid")
    between, shares = zip(*(inputs.patches(layer, grid) for layer in layers), strict=True)
    anatomies = [parts.anatomy(layer, grid) for layer in between]
    kernels, errors = [], []
    for layer, anatomy in zip(between, anatomies, strict=True):
        mean = layer.mean(axis=0)
        kernels.append(best_kernel(mean, anatomy.profile, grid, kernel_size))
        squares = np.square(kernels[-1] - mean).sum(axis=(1, 2))
        errors.append(np.sqrt(squares / np.square(mean).sum(axis=(1, 2))))
    replaced = None
    if watched is not None:
        replaced = measure(attention_or_model, images, watched, kernels, kernel_size, labels)
    shifts = grid_shifts(1, kernel_size)
    return Report(
        grid,
        list(between),
        list(shares),
        anatomies,
        [layer_statistics(layer.reshape(*layer.shape[:2], *grid, *grid), shifts) for layer in between],
        kernel_size,
        errors,
        [] if watched is None else [layer.difference for layer in watched.layers],
        replaced,
    )
