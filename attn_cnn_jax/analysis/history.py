"""How far heads look, and how near a layer is to a convolution, after every epoch of a run.

Recomputed from positions.jsonl, which holds the parameters of quadratic encodings: without a checkpoint per epoch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.heads import layer_statistics, some_interior_queries
from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.run import Run

KERNEL = (3, 3)  # "local" is within it, and Lemma 3 is asked for its shifts
MOST_EPOCHS = 40  # of a long run
PANELS = {
    "distance": "mean distance (pixels)",
    "within": "attention within 3x3 (%)",
    "entropy": "entropy (nats)",
    "residual": "residual of Lemma 3, 3x3",
}


class History(NamedTuple):
    """By epoch and layer, means over heads and interior query pixels.

    Attributes:
      epochs: of the records.
      distance: mean `|key - query|`, in pixels that attention works on.
      within: share of the attention on the 3x3 pixels around the query.
      entropy: nats.
      residual: of Lemma 3 for the shifts of a 3x3 kernel, see theorem/span.py; 0: a layer that can be any 3x3
        convolution there.
    """

    epochs: Float[np.ndarray, " e"]
    distance: Float[np.ndarray, "e n"]
    within: Float[np.ndarray, "e n"]
    entropy: Float[np.ndarray, "e n"]
    residual: Float[np.ndarray, "e n"]


def is_recorded(run: Run) -> bool:
    """Returns whether positions.jsonl holds all that the attention of this network depends on."""
    return (
        isinstance(run.model, AttentionClassifier)
        and not run.model.depends_on_content
        and all(isinstance(block.attention.position, CentredEncoding) for block in run.model.blocks)
    )


def history(run: Run, records: Sequence[dict]) -> History:
    """Returns the history of a run.

    Args:
      run: the run, at any step.
      records: of its positions.jsonl, from `read_positions`; of many epochs some, the first and the last among them.

    Raises:
      UserError: there are no records, or they do not determine the attention.
    """
    if not is_recorded(run):
        raise UserError(
            "the history is that of recorded centres and spreads: this network's attention depends on more than them"
        )
    if not records:
        raise UserError("this run has no recorded positions: it was trained without recording")
    kept = sorted(set(np.linspace(0, len(records) - 1, min(len(records), MOST_EPOCHS)).round().astype(int)))
    rows = [measured(layers) for layers in attention_of(run, [records[index]["layers"] for index in kept])]
    return History(np.array([float(records[index]["epoch"]) for index in kept]), *np.moveaxis(np.array(rows), 2, 0))


def attention_of(run: Run, records: Sequence[Sequence[dict]]) -> Iterator[list[np.ndarray]]:
    """Yields the attention of every layer, `(h, i, j, k, l)`, for each record of their parameters."""
    skeleton, parameters, statistics = split(run.model)
    prefix = "blocks.{}.attention.position.{}"

    @jax.jit
    def attention(position: Arrays) -> list[jax.Array]:
        model: Any = join(skeleton, parameters | position, statistics)
        return model.attention(run.config.model.image_shape)

    for layers in records:
        position = {
            prefix.format(n, name): jnp.asarray(np.array(value), parameters[prefix.format(n, name)].dtype)
            for n, values in enumerate(layers)
            for name, value in values.items()
        }
        yield [np.asarray(layer) for layer in attention(position)]


def measured(layers: Sequence[np.ndarray]) -> list[list[float]]:
    """Returns distance, share within 3x3, entropy and residual of every layer, given its attention."""
    shifts, result = kernel_shifts(KERNEL), []
    for attention in layers:
        found = layer_statistics(attention, shifts, some_interior_queries(attention.shape[1:3]))
        within = found.shift_mass.sum(axis=1).mean()
        result.append([found.distance.mean(), within, found.entropy.mean(), found.span_residual])
    return result


def draw(history: History, title: str) -> Figure:
    """Returns four panels over the epochs, a line per layer: the first layer dark, the last light."""
    with style.styled():
        figure = style.create_figure(style.PAGE, 1.9)
        figure.suptitle(title, fontsize=7)
        num_layers = history.distance.shape[1]
        colours = matplotlib.colormaps["viridis"]([0.85 * n / max(1, num_layers - 1) for n in range(num_layers)])
        lines = []
        for axes, (name, label) in zip(figure.subplots(1, 4), PANELS.items(), strict=True):
            values = getattr(history, name) * (100 if name == "within" else 1)
            lines = [
                axes.plot(history.epochs, values[:, n], color=colours[n], linewidth=1, gid=f"{name} {n + 1}")[0]
                for n in range(num_layers)
            ]
            axes.set(title=label, xlabel="epoch")
            axes.set_ylim(bottom=0)
            style.decorate(axes)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        names = [f"layer {n + 1}" for n in range(num_layers)]
        figure.legend(lines, names, loc="outside lower center", ncols=min(num_layers, 8), frameon=False)
    return figure
