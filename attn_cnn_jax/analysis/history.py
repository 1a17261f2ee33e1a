"""How far heads look, and how near a layer is to a convolution, after every epoch of a run.

Recomputed from positions.jsonl, which holds the parameters of quadratic encodings: without a checkpoint per epoch.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis.heads import layer_statistics, some_interior_queries
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.positions import evenly
from attn_cnn_jax.runs.run import Run, network_attention

KERNEL = (3, 3)  # "local" is within it, and Lemma 3 is asked for its shifts
MOST_EPOCHS = 40  # of a long run


class History(NamedTuple):
    """By epoch and layer, means over heads and interior query pixels.

    Attributes:
      distance: mean `|key - query|`, in pixels that attention works on.
      within: share of the attention on the 3x3 pixels around the query.
      entropy: nats.
      residual: of Lemma 3 for a 3x3 kernel, see theorem/span.py; 0: the layer can be any such convolution there.
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


@jax.transfer_guard("allow")  # whatever the caller or JAX_TRANSFER_GUARD forbids elsewhere
def history(run: Run, records: Sequence[dict]) -> History:
    """Returns the history of a run, at any step, from the records of its positions.jsonl.

    Of many epochs some, the first and the last among them. UserError if they do not determine the attention.
    """
    if not is_recorded(run):
        raise UserError(
            "the history is that of recorded centres and spreads: this network's attention depends on more than them"
        )
    kept, shifts, rows = evenly(records, MOST_EPOCHS), kernel_shifts(KERNEL), []
    for layers in attention_of(run, kept):
        found = [layer_statistics(layer, shifts, some_interior_queries(layer.shape[1:3])) for layer in layers]
        rows.append([(of.distance.mean(), of.within.mean(), of.entropy.mean(), of.span_residual) for of in found])
    return History(np.array([float(record["epoch"]) for record in kept]), *np.moveaxis(np.array(rows), 2, 0))


def attention_of(run: Run, records: Sequence[dict]) -> Iterator[list[np.ndarray]]:
    """Yields the attention of every layer, `(h, i, j, k, l)`, for each record."""
    skeleton, parameters, statistics = split(run.model)
    for record in records:
        position = {
            f"blocks.{n}.attention.position.{name}": np.array(value)
            for n, values in enumerate(record["layers"])
            for name, value in values.items()
        }
        typed = {name: jnp.asarray(value, parameters[name].dtype) for name, value in position.items()}
        arrays = parameters | typed, statistics
        attention = network_attention(skeleton, tuple(run.config.model.image_shape), arrays)
        yield [np.asarray(layer) for layer in attention]
