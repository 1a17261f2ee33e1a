"""positions.jsonl: where every head looks, after every epoch; the figures and the page show it.

One JSON object per line: `step`, `epoch` and `layers`, one object per layer, whose lists go over heads. Lengths are
in pixels of the grid that attention works on, rows first.

- quadratic encodings: the parameters `centre` `(h, 2)` and `spread` (`(h,)`, generalised `(h, 2, 2)`);
- encodings with other position scores: `centre` `(h, 2)` and `covariance` `(h, 2, 2)` of the attention of
  the central query pixel by those scores alone, relative to that pixel;
- layers without position scores: an empty object. A network without any has no positions.jsonl.

Written like metrics.jsonl: no half lines, and a resumed run neither repeats nor skips an epoch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.config import create_model
from attn_cnn_jax.config.network import grid
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.scores import softmax
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.models.variables import Arrays, Skeleton, join, names
from attn_cnn_jax.runs.metrics import NUMBER, append, cut_back, read_records

FILE = "positions.jsonl"
SIGNIFICANT_DIGITS = 6


def read_positions(workdir: Path | str) -> list[dict]:
    """Returns the records of positions.jsonl, oldest first; an empty list where none was written."""
    return read_records(Path(workdir) / FILE, step=int, epoch=NUMBER, layers=list)


def create_recorder(
    config: ConfigDict, skeleton: Skeleton, workdir: Path, after_step: int
) -> Callable[[int, float, Arrays], None]:
    """Opens the positions of a run that continues after a step (-1: a new run).

    Returns:
      `record(step, epoch, parameters)`, which writes one line, or nothing where attention knows no position.
    """
    if not has_positions(config):
        return lambda step, epoch, parameters: None
    cut_back(workdir / FILE, after_step)
    of_layers = positions_of_layers(config, skeleton)

    def record(step: int, epoch: float, parameters: Arrays) -> None:
        position = {name: array for name, array in parameters.items() if ".attention.position." in name}
        append(workdir / FILE, {"step": step, "epoch": epoch, "layers": of_layers(jax.device_get(position))})

    return record


def has_positions(config: ConfigDict) -> bool:
    """Returns whether the attention of a network knows positions of its own."""
    if config.model.name != "attention":
        return False

    def terms():
        model: Any = create_model(config.model, rngs=nnx.Rngs(0))
        return model.blocks[0].attention.position_terms(*grid(config.model), jnp.array([0]))

    return bool(nnx.eval_shape(terms))


def positions_of_layers(config: ConfigDict, skeleton: Skeleton) -> Callable[[Arrays], list[dict]]:
    """Returns a function from the parameters of positions to what is recorded, per layer.

    That is the centres and spreads of quadratic encodings, or else the moments of the central pixel's attention.
    """
    height, width = grid(config.model)
    query = (height // 2, width // 2)

    def blocks(position: Arrays) -> Any:
        # Position scores read nothing but position parameters: the others need not leave the devices.
        nothing: Any = jax.ShapeDtypeStruct((), jnp.float32)
        blank: dict[str, Any] = dict.fromkeys(names(skeleton.parameters), nothing)
        statistics: dict[str, Any] = dict.fromkeys(names(skeleton.statistics), nothing)
        model: Any = join(skeleton, blank | position, statistics)
        return model.blocks

    @jax.jit
    def attention(position: Arrays) -> list[jax.Array]:
        layers = []
        for block in blocks(position):
            terms = block.attention.position_terms(height, width, jnp.array(query[:1])).values()
            scores: Any = sum(term[:, 0, query[1]] for term in terms)
            layers.append(softmax(scores.reshape(len(scores), -1)).reshape(scores.shape))
        return layers

    def of_layers(position: Arrays) -> list[dict]:
        encodings = [block.attention.position for block in blocks(position)]
        if isinstance(encodings[0], CentredEncoding):
            recorded = [
                {name: np.asarray(getattr(each, name)[...]) for name in ("centre", "spread")} for each in encodings
            ]
        else:
            recorded = [
                {"centre": moments.centre_of_mass(layer) - query, "covariance": moments.covariance(layer)}
                # Put there and fetched explicitly, as a training loop demands (jax.transfer_guard).
                for layer in jax.device_get(attention(jax.device_put(position)))
            ]
        return [{name: rounded(array) for name, array in layer.items()} for layer in recorded]

    return of_layers


def rounded(array: AnyArray) -> list:
    """Returns an array as nested lists, of numbers with as many digits as a figure can show."""
    digits = np.vectorize(lambda x: float(f"{x:.{SIGNIFICANT_DIGITS}g}"), otypes=[float])
    return digits(array).tolist() if array.size else []
