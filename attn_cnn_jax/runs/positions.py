"""positions.jsonl: where every head looks, after every epoch, for the figures and the page of a run's course.

One JSON object a line: `step`, `epoch` and `layers`, one object a layer, whose lists go over heads. Pixels
are those of the attention's grid, row first.

- quadratic encodings: the parameters `centre` `(h, 2)` and `spread` (`(h,)`, generalised `(h, 2, 2)`);
- encodings with other position scores: `centre` `(h, 2)` and `covariance` `(h, 2, 2)` of the attention of
  the central query pixel by those scores alone, relative to that pixel;
- layers without position scores: an empty object. A network without any has no positions.jsonl.

Of several seeds, one line a seed, with its number in `seed`. Written like metrics.jsonl: no half lines, and a
resumed run neither repeats nor skips an epoch.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config import create_model
from attn_cnn_jax.config.network import grid
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.dense import softmax
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.variables import Arrays, Skeleton, join, names
from attn_cnn_jax.runs.metrics import NUMBER, append, cut_back, read_records
from attn_cnn_jax.runs.seeds import pick, seeds_of

FILE = "positions.jsonl"
SIGNIFICANT_DIGITS = 6


def read_positions(workdir: Path | str, seed: int | None = None) -> list[dict]:
    """The records of a run's positions.jsonl, oldest first; an empty list where none was written.

    Args:
      seed: of a run of several seeds, which; None for all.
    """
    records = read_records(Path(workdir) / FILE, {"step": int, "epoch": NUMBER, "layers": list})
    return [record for record in records if seed in (None, record.get("seed", seed))]


def create_recorder(
    config: ConfigDict, skeleton: Skeleton, workdir: Path, after_step: int
) -> Callable[[int, float, Arrays], None]:
    """Opens the positions of a run that goes on after `after_step` (0: a new run).

    Args:
      config: the run's configuration.
      skeleton: of the network, see models/variables.py.

    Returns:
      `record(step, epoch, parameters)`, which writes one line a seed, or nothing where attention knows no position.
    """
    if not has_positions(config):
        return lambda step, epoch, parameters: None
    cut_back(workdir / FILE, after_step)
    last = max((record["step"] for record in read_positions(workdir)), default=-1)
    of_layers = positions_of_layers(config, skeleton)

    def record(step: int, epoch: float, parameters: Arrays) -> None:
        if step <= last:  # the start of a run that was stopped before its first step
            return
        position = {name: np.asarray(array) for name, array in parameters.items() if ".attention.position." in name}
        where = {"step": step, "epoch": epoch}
        seeds = seeds_of(config)
        append(
            workdir / FILE,
            *(
                where | ({"seed": seed} if len(seeds) > 1 else {}) | {"layers": of_layers(pick(config, position, seed))}
                for seed in seeds
            ),
        )

    return record


def has_positions(config: ConfigDict) -> bool:
    """Whether the attention of a network knows positions of its own."""
    if config.model.name != "attention":
        return False

    def terms():
        layer = create_model(config.model, rngs=nnx.Rngs(0)).blocks[0].attention
        return layer.position_terms(*grid(config.model), jnp.array([0]))

    return bool(nnx.eval_shape(terms))


def positions_of_layers(config: ConfigDict, skeleton: Skeleton) -> Callable[[Arrays], list[dict]]:
    """A function from the parameters of positions to what is recorded of every layer.

    That is what the encoding says (`Encoding.recorded`), or else the moments of the central pixel's attention.
    """
    height, width = grid(config.model)
    query = (height // 2, width // 2)

    def network(position: Arrays) -> AttentionClassifier:
        # Position scores read nothing but position parameters: the others need not leave the devices.
        blank = dict.fromkeys(names(skeleton.parameters), jax.ShapeDtypeStruct((), jnp.float32))
        return join(skeleton, blank | position, {})

    @jax.jit
    def attention(position: Arrays) -> list[jax.Array]:
        layers = []
        for block in network(position).blocks:
            terms = block.attention.position_terms(height, width, jnp.array(query[:1])).values()
            scores = sum(term[:, 0, query[1]] for term in terms)
            layers.append(softmax(scores.reshape(len(scores), -1)).reshape(scores.shape))
        return layers

    def of_layers(position: Arrays) -> list[dict]:
        recorded = [block.attention.position.recorded() for block in network(position).blocks]
        if recorded[0] is None:
            recorded = [
                {"centre": moments.centre_of_mass(layer) - query, "covariance": moments.covariance(layer)}
                for layer in map(np.asarray, attention(position))
            ]
        return [{name: rounded(array) for name, array in layer.items()} for layer in recorded]

    return of_layers


def rounded(array: np.ndarray) -> list:
    """Nested lists of numbers with as many digits as a figure can show."""
    digits = np.vectorize(lambda x: float(f"{x:.{SIGNIFICANT_DIGITS}g}"), otypes=[float])
    return digits(array).tolist() if array.size else []
