"""positions.jsonl: where every head looks, after every epoch; the figures and the page show it.

One JSON object per line: `step`, `epoch` and `layers`, one object per layer, whose lists go over heads. Lengths are
in pixels of the grid that attention works on, rows first.

- quadratic encodings: the parameters `centre` `(h, 2)` and `spread` (`(h,)`, generalised `(h, 2, 2)`);
- encodings with other position scores: `centre` `(h, 2)` and `covariance` `(h, 2, 2)` of the attention of
  the central query pixel by those scores alone, relative to that pixel;
- layers without position scores: an empty object. A network without any has no positions.jsonl.

Written like metrics.jsonl: no half lines, and a resumed run neither repeats nor skips an epoch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax import compiling
from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.config.network import abstract_model, grid
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.scores import softmax
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.models.variables import Arrays, Skeleton, join, names, split
from attn_cnn_jax.runs.metrics import NUMBER, append, cut_back, read_records

FILE = "positions.jsonl"


def read_positions(workdir: Path | str) -> list[dict]:
    """Returns the records of positions.jsonl, oldest first; an empty list where none was written."""
    return read_records(Path(workdir) / FILE, step=int, epoch=NUMBER, layers=list)


def evenly(records: Sequence[dict], most: int) -> list[dict]:
    """Returns at most `most` records, evenly from the first to the last."""
    chosen = np.unique(np.linspace(0, len(records) - 1, min(most, len(records))).round().astype(int))
    return [records[n] for n in chosen]


def create_recorder(
    model: ConfigDict, skeleton: Skeleton, workdir: Path, after_step: int
) -> Callable[[int, float, Arrays], None]:
    """Opens the positions of a run with the network `config.model`, which continues after a step (-1: a new run).

    Returns `record(step, epoch, parameters)`, which writes one line, or nothing where attention knows no position.
    """
    height, width = grid(model) if model.name == "attention" else (1, 1)
    query = (height // 2, width // 2)

    def moments_of(parameters: Arrays) -> list[dict[str, jax.Array]]:
        """Returns per layer what is written of the parameters, or the attention of the central query pixel."""
        blank: Any = dict.fromkeys(names(skeleton.parameters), jax.ShapeDtypeStruct((), jnp.float32))
        layers, network = [], join(skeleton, blank | parameters, {})
        for attention in (block.attention for block in network.blocks):  # pyright: ignore[reportAttributeAccessIssue]
            encoding = attention.position
            if isinstance(encoding, CentredEncoding):
                layers.append({"centre": encoding.centre[...], "spread": encoding.spread[...]})
                continue
            terms = attention.position_terms(height, width, jnp.array(query[:1])).values()
            scores: Any = sum(term[:, 0, query[1]] for term in terms)
            layers.append(
                {"attention": softmax(scores.reshape(len(scores), -1)).reshape(scores.shape)} if terms else {}
            )
        return layers

    def written(attention: np.ndarray) -> dict[str, np.ndarray]:
        return {"centre": moments.centre_of_mass(attention) - query, "covariance": moments.covariance(attention)}

    jitted = compiling.jit(moments_of)

    def record(step: int, epoch: float, parameters: Arrays) -> None:
        # Fetched and put there explicitly, as a training loop demands: to a device of this process.
        layers = jax.device_get(jitted(jax.device_put(jax.device_get(positions_of(parameters)))))
        layers = [written(**layer) if "attention" in layer else layer for layer in layers]
        rows = [{name: rounded(array) for name, array in layer.items()} for layer in layers]
        append(workdir / FILE, {"step": step, "epoch": epoch, "layers": rows})

    if model.name != "attention" or not any(jax.eval_shape(moments_of, positions_of(split(abstract_model(model))[1]))):
        return lambda step, epoch, parameters: None
    cut_back(workdir / FILE, after_step)
    return record


def positions_of(parameters: Arrays) -> Arrays:
    """Returns the parameters of positions: scores of positions read no others, which need not leave the devices."""
    return {name: array for name, array in parameters.items() if ".attention.position." in name}


def rounded(array: AnyArray, digits: int = 6) -> list:
    """Returns an array as nested lists, of numbers with as many significant digits, by default as a figure can show."""
    number = np.vectorize(lambda x: float(f"{x:.{digits}g}"), otypes=[float])
    return number(array).tolist() if array.size else []
