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
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.config.network import abstract_model, grid
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.scores import softmax
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.models.variables import Arrays, Skeleton, join, names, split
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
    if config.model.name != "attention":
        return lambda step, epoch, parameters: None
    height, width = grid(config.model)
    query = (height // 2, width // 2)

    def blocks(position: Arrays) -> Any:
        # Position scores read nothing but position parameters: the others need not leave the devices.
        blank: Any = jax.ShapeDtypeStruct((), jnp.float32)
        parameters, statistics = ({name: blank for name in names(tree)} for tree in skeleton[1:])
        model: Any = join(skeleton, parameters | position, statistics)
        return model.blocks

    def scores(position: Arrays) -> list[Any]:
        row = jnp.array(query[:1])
        terms = [block.attention.position_terms(height, width, row).values() for block in blocks(position)]
        return [sum(term[:, 0, query[1]] for term in layer) for layer in terms if layer]

    @jax.jit
    def attention(position: Arrays) -> list[jax.Array]:
        return [softmax(layer.reshape(len(layer), -1)).reshape(layer.shape) for layer in scores(position)]

    def record(step: int, epoch: float, parameters: Arrays) -> None:
        position = jax.device_get(positions_of(parameters))
        encodings = [block.attention.position for block in blocks(position)]
        if isinstance(encodings[0], CentredEncoding):
            layers = [
                {name: np.asarray(getattr(each, name)[...]) for name in ("centre", "spread")} for each in encodings
            ]
        else:
            layers = [
                {"centre": moments.centre_of_mass(layer) - query, "covariance": moments.covariance(layer)}
                # Put there and fetched explicitly, as a training loop demands (jax.transfer_guard).
                for layer in jax.device_get(attention(jax.device_put(position)))
            ]
        rows = [{name: rounded(array) for name, array in layer.items()} for layer in layers]
        append(workdir / FILE, {"step": step, "epoch": epoch, "layers": rows})

    if not jax.eval_shape(scores, positions_of(split(abstract_model(config.model))[1])):
        return lambda step, epoch, parameters: None
    cut_back(workdir / FILE, after_step)
    return record


def positions_of(parameters: Arrays) -> Arrays:
    """Returns the parameters of positions."""
    return {name: array for name, array in parameters.items() if ".attention.position." in name}


def rounded(array: AnyArray) -> list:
    """Returns an array as nested lists, of numbers with as many digits as a figure can show."""
    digits = np.vectorize(lambda x: float(f"{x:.{SIGNIFICANT_DIGITS}g}"), otypes=[float])
    return digits(array).tolist() if array.size else []
