"""The report: anatomy, the paper's measures, and what replacing heads by convolutions costs, head by head."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis.heads import COVERED, Statistics, measures
from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.instrument import anatomy as parts
from attn_cnn_jax.instrument import kernels, rollout, text
from attn_cnn_jax.instrument.curves import Watched, cheapest, curve
from attn_cnn_jax.instrument.layer import Layer
from attn_cnn_jax.instrument.replace import replace
from attn_cnn_jax.output import csv_text
from attn_cnn_jax.theorem.rank import effective_heads


@dataclasses.dataclass(frozen=True)
class Report:
    """What `inspect` found; layers and heads count from 0 in arrays, from 1 in `rows` and in text.

    Attributes:
      layers_measured: by layer, see instrument/layer.py.
      images: how many there were.
      kernel_sizes: the first is K of `kernel_error`, `within` and `replaced`.
      notes: what was assumed, and what was left out and why.
      watched: the network; None for arrays.
    """

    layers_measured: list[Layer]
    images: int
    kernel_sizes: tuple[int, ...]
    notes: tuple[str, ...] = ()
    watched: Watched | None = None

    @property
    def grids(self) -> list[Grid]:
        """By layer rows and columns of patches, of a window where attention has windows."""
        return [layer.grid for layer in self.layers_measured]

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches, of the first layer where layers differ."""
        return self.grids[0]

    @property
    def kernel_size(self) -> int:
        return self.kernel_sizes[0]

    @property
    def attention(self) -> list[Float[np.ndarray, "n h q p"]]:
        """By layer between patches, rows sum to 1; of the first images alone where all need more than `KEPT` bytes.

        Windows of an image follow one another.
        """
        return [layer.attention for layer in self.layers_measured]

    @property
    def mean_attention(self) -> list[Float[np.ndarray, "h q p"]]:
        """By layer the mean over all images, and over windows."""
        return [layer.anatomy.mean.mean(axis=0) for layer in self.layers_measured]

    @property
    def prefix_share(self) -> list[Float[np.ndarray, " h"]]:
        """By layer the share of attention that class and register tokens had."""
        return [layer.prefix_share for layer in self.layers_measured]

    @property
    def anatomies(self) -> list[parts.Anatomy]:
        """By layer, see instrument/anatomy.py."""
        return [layer.anatomy for layer in self.layers_measured]

    @property
    def statistics(self) -> list[Statistics]:
        """By layer the paper's measures, see analysis/heads.py."""
        return [layer.statistics for layer in self.layers_measured]

    @property
    def within(self) -> list[Float[np.ndarray, " h"]]:
        """By layer the share of attention within K x K, mean over queries whose window is inside the grid."""
        return [layer.within for layer in self.layers_measured]

    @property
    def kernel_error(self) -> list[Float[np.ndarray, " h"]]:
        """By layer the relative error of the attention (mean over images) as its best K x K kernel."""
        return [layer.kernel_errors[self.kernel_size] for layer in self.layers_measured]

    @property
    def differences(self) -> list[float]:
        """By layer, of averages computed again from attention and values, relative; empty for arrays."""
        return [layer.difference for layer in self.layers_measured if layer.difference is not None]

    @property
    def output_change(self) -> list[Float[np.ndarray, " h"]]:
        """By layer, of a head's averages of values with its kernel in its place, relative; empty for arrays."""
        return [layer.output_change for layer in self.layers_measured if layer.output_change is not None]

    @property
    def of_network(self) -> Watched:
        """The network, whose heads can be replaced; UserError for arrays."""
        if self.watched is None:
            raise UserError("heads are replaced in a network, and this report is of arrays")
        return self.watched

    @functools.cached_property
    def replaced(self) -> list[dict[str, float]]:
        """`curve` with no head, half of them and all; the network runs when this is first asked for. [] for arrays."""
        count = sum(len(errors) for errors in self.kernel_error)
        return self.curve(sorted({0, count // 2, count})) if self.watched else []

    def curve(
        self,
        heads: Sequence[int],
        *,
        kernel_size: int | None = None,
        instead: str = "kernel",
        layer: int | None = None,
    ) -> list[dict[str, float]]:
        """Runs the network with so many heads replaced, cheapest first; returns a row for each number.

        A row has `heads`; `logits`, the largest change of the network's output, relative to the largest of it;
        of classifiers `accuracy`, the share of images with the right class, or without labels `agreement` with its own
        (an output `(b, n)` is of one, unless `num_classes` of the network is 0); `cosine`, of the features of patches
        with the network's own, and `cosine_class_token`, of the first other token, where the output has as many tokens;
        `saved`, the share of multiply-adds of scores and averages that convolutions save, which is no share of time.

        Args:
          heads: how many to replace.
          kernel_size: K of the kernels, by default the report's.
          instead: "kernel"; and, to compare, "uniform" for uniform attention or "mean" for that of the mean image.
          layer: the only one whose heads are replaced.
        """
        measured, watched = self.layers_measured, self.of_network
        if layer is not None and layer not in range(len(measured)):
            raise UserError(f"layer={layer}: allowed is 0 to {len(measured) - 1}, among those measured")
        order = [head for head in cheapest(measured) if layer is None or head[0] == layer]
        return curve(watched, measured, heads, self._size(kernel_size), instead, order)

    def replaced_network(self, heads: Sequence[tuple[int, int]] | int, *, kernel_size: int | None = None) -> Any:
        """Returns a copy of the network, of its own library, whose heads are depth-wise convolutions of their values.

        It is a module that computes what `curve` measures, and can be trained, saved and exported as others.

        Args:
          heads: layer and head of each, from 0, as `convolutions` returns them; or how many, cheapest first.
          kernel_size: K of the kernels, by default the report's.

        Raises:
          UserError: for arrays, windows, and heads that are merged with images, and runs of this package.
        """
        return replace(self.of_network, self.layers_measured, heads, self._size(kernel_size))

    def _size(self, kernel_size: int | None) -> int:
        """A kernel size, by default the report's; UserError for one that is none."""
        size = self.kernel_size if kernel_size is None else kernel_size
        kernels.check_sizes([size], [layer.grid for layer in self.layers_measured])
        return size

    @property
    def anatomy(self) -> Float[np.ndarray, "layers h 3"] | list[Float[np.ndarray, "h 3"]]:
        """Shares relative, absolute, content of every head; a list where layers differ in their heads."""
        shares = [layer.shares for layer in self.anatomies]
        return np.stack(shares) if len({len(layer) for layer in shares}) == 1 else shares

    def convolutions(self, error: float = 0.01) -> list[tuple[int, int]]:
        """Returns layer and head of those whose attention is a K x K kernel up to a relative error."""
        return [(n, h) for n, layer in enumerate(self.kernel_error) for h in np.flatnonzero(layer <= error).tolist()]

    def nearest(self, count: int = 10) -> list[dict[str, Any]]:
        """Returns the `rows` of the heads that are nearest to a K x K kernel."""
        return sorted(self.rows(), key=lambda row: row["kernel_error"])[:count]

    def rollout(self) -> Float[np.ndarray, "b t p"]:
        """Attention rollout, by token and patch; the first images alone where `attention` has no more.

        See instrument/rollout.py.
        """
        return rollout.rollout(self.layers_measured)

    def maps(self) -> dict[str, Float[np.ndarray, "b *h r c"]]:
        """Rollout of the class token, or of the mean over patches, and the class token's attention, layer by layer."""
        return rollout.maps(self.layers_measured)

    def columns(self, layer: int) -> dict[str, Float[np.ndarray, " h"]]:
        """Returns the measures of a layer's heads: lengths in patches, entropy in nats, shares from 0 to 1."""
        of = self.layers_measured[layer]
        found: dict[str, Any] = {}
        found.update(zip(parts.PARTS, of.anatomy.shares.T, strict=True))
        if of.anatomy.errors is not None:
            found["error"] = of.anatomy.errors.max(axis=1)
        if of.position_alone is not None:
            found["position_alone"] = of.position_alone
        found |= {"key_alone": of.key_alone, "shift_row": of.shift.rows, "shift_column": of.shift.columns}
        found |= {"shift_share": of.shift.share} | measures(of.statistics) | {"within": of.within}
        found["kernel_error"] = of.kernel_errors[self.kernel_size]
        found |= {f"kernel_error_{size}": of.kernel_errors[size] for size in self.kernel_sizes[1:]}
        found["prefix_share"] = of.prefix_share
        return found | ({} if of.output_change is None else {"output_change": of.output_change})

    def rows(self) -> list[dict[str, Any]]:
        """Returns `columns` as one dictionary per head; layers are numbered as the network computes them."""
        return [
            {"layer": layer.number + 1, "head": head + 1}
            | {name: float(values[head]) for name, values in self.columns(n).items()}
            for n, layer in enumerate(self.layers_measured)
            for head in range(len(layer.within))
        ]

    def layers(self) -> list[dict[str, Any]]:
        """Returns one dictionary per layer: means over heads, Lemma 3's residual, coverage of the K x K grid.

        `rank` is that of the heads' attention, mean over images, up to 5%: heads that attend alike count once (as
        theorem/rank.py has it for orthogonal value maps).
        """
        found = []
        for n, layer in enumerate(self.layers_measured):
            columns, names = self.columns(n), (*parts.PARTS, "position_alone", "key_alone", "distance", "within")
            mean = {name: float(columns[name].mean()) for name in names if name in columns}
            covered = f"{(layer.statistics.shift_mass.max(axis=0) >= COVERED).sum()} of {self.kernel_size**2}"
            row = {"layer": layer.number + 1} | mean | {"lemma_3_residual": layer.statistics.span_residual}
            heads = layer.statistics.patterns
            rank = effective_heads(heads, np.eye(len(heads))[..., None])
            found.append(row | {"covered": covered, "rank": rank})
        return found

    def to_csv(self, path: str | Path) -> None:
        """Writes `rows` as comma-separated values."""
        write_atomically(Path(path), csv_text(self.rows()))

    def to_json(self, path: str | Path) -> None:
        """Writes grid, heads, layers, notes, and the cost of replacing heads where it was asked for."""
        whole = {"grid": self.grid, "kernel_size": self.kernel_size, "heads": self.rows(), "layers": self.layers()}
        whole |= {"grids": self.grids, "images": self.images, "notes": self.notes}
        whole["replaced"] = self.__dict__.get("replaced", [])
        write_atomically(Path(path), json.dumps(whole, indent=1) + "\n")

    def __str__(self) -> str:
        """A line per layer and the ten nearest heads, at most 100 columns wide."""
        size, number = f"{self.kernel_size}x{self.kernel_size}", len(self.rows())
        lines = [*text.opening(self.layers_measured, self.images, self.notes), "", text.as_text(self.layers()), ""]
        lines.append(f"Heads nearest to {size} kernels, and the shift that each attends to most, down and right:")
        names = [*text.NEAREST, *(["output_change"] if self.output_change else [])]
        lines.append(text.as_text([{name: row[name] for name in names if name in row} for row in self.nearest()]))
        counts = [f"{len(self.convolutions(error))} up to {error:.0%}" for error in text.THRESHOLDS]
        lines += ["", f"Of {number} heads, {', '.join(counts)} are {size} kernels (kernel error)."]
        if self.differences:
            lines.append(f"averages computed again from attention and values: within {max(self.differences):.1e}")
        if vars(self).get("replaced"):
            lines += ["", f"heads as {size} convolutions, cheapest first:", text.as_text(self.replaced)]
        return "\n".join(lines)
