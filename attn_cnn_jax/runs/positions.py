"""positions.jsonl: where every head looks, after every epoch; the figures and the page show it.

One JSON object per line: `step`, `epoch` and `layers`, one object per layer, whose lists go over heads. Lengths are
in pixels of the grid that attention works on, rows first.

- quadratic encodings: the parameters `centre` `(h, 2)` and `spread` (`(h,)`, generalised `(h, 2, 2)`);
- encodings with other position scores: `centre` `(h, 2)` and `covariance` `(h, 2, 2)` of the attention of
  the central query pixel by those scores alone, relative to that pixel;
- layers without position scores: an empty object. A network without any has no positions.jsonl.

Runs of several seeds, which version 0.1.0 wrote, have one line per seed, with its number in `seed`. Written like
metrics.jsonl: no half lines, and a resumed run neither repeats nor skips an epoch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.models.attention import kernels, moments
from attn_cnn_jax.models.variables import Arrays, Skeleton, join, names
from attn_cnn_jax.runs.metrics import NUMBER, append, cut_back, read_records

FILE = "positions.jsonl"
QUADRATIC = ("quadratic", "quadratic_generalized")
SIGNIFICANT_DIGITS = 6


def read_positions(workdir: Path | str, seed: int | None = None) -> list[dict]:
    """Returns the records of positions.jsonl, oldest first; an empty list where none was written.

    Args:
      workdir: the run directory.
      seed: which seed of a run of several; None for all.
    """
    records = read_records(Path(workdir) / FILE, {"step": int, "epoch": NUMBER, "layers": list})
    return [record for record in records if seed in (None, record.get("seed", seed))]


def create_recorder(
    config: ConfigDict, skeleton: Skeleton, workdir: Path, after_step: int
) -> Callable[[int, float, Arrays], None]:
    """Opens the positions of a run that goes on after `after_step` (0: a new run).

    Args:
      config: the configuration of the run.
      skeleton: of its network, see models/variables.py.
      workdir: the run directory.
      after_step: the number of finished steps.

    Returns:
      `record(step, epoch, parameters)`, which writes one line, or nothing where attention knows no position.
    """
    if config.model.name != "attention" or config.model.encoding.startswith("absolute"):
        return lambda step, epoch, parameters: None
    if config.model.encoding == "relative" and "position_position" not in config.model.relative_terms:
        return lambda step, epoch, parameters: None
    cut_back(workdir / FILE, after_step)
    last = max((record["step"] for record in read_positions(workdir)), default=-1)
    of_layers = quadratic_positions if config.model.encoding in QUADRATIC else position_moments(config, skeleton)

    def record(step: int, epoch: float, parameters: Arrays) -> None:
        if step <= last:  # the start of a run that was stopped before its first step
            return
        position = {name: array for name, array in parameters.items() if ".attention.position." in name}
        append(workdir / FILE, {"step": step, "epoch": epoch, "layers": of_layers(jax.device_get(position))})

    return record


def quadratic_positions(parameters: Arrays) -> list[dict]:
    """Returns, per layer, centres and spreads as they stand in the parameters of a quadratic encoding."""
    layers: dict[int, dict] = {}
    for name, array in parameters.items():
        _, layer, _, _, quantity = name.split(".")  # blocks.0.attention.position.centre
        layers.setdefault(int(layer), {})[quantity] = rounded(array)
    return [layers[layer] for layer in sorted(layers)]


def position_moments(config: ConfigDict, skeleton: Skeleton) -> Callable[[Arrays], list[dict]]:
    """Returns a function from position parameters to the moments of the central pixel's attention, per layer."""
    height, width = (size // config.model.downsample for size in config.model.image_shape[:2])
    query = (height // 2, width // 2)

    @jax.jit
    def attention(position: Arrays) -> list[jax.Array]:
        # Position scores read nothing but position parameters: the others need not leave the devices.
        blank: dict[str, Any] = dict.fromkeys(names(skeleton.parameters), jax.ShapeDtypeStruct((), jnp.float32))
        model: Any = join(skeleton, blank | position, {})
        layers = []
        for block in model.blocks:
            terms = block.attention.position_terms(height, width, jnp.array(query[:1])).values()
            scores: Any = sum(term[:, 0, query[1]] for term in terms)
            layers.append(kernels.softmax(scores.reshape(len(scores), -1)).reshape(scores.shape))
        return layers

    def layers_of(position: Arrays) -> list[dict]:
        return [
            {
                "centre": rounded(moments.centre_of_mass(layer) - query),
                "covariance": rounded(moments.covariance(layer)),
            }
            # Put there and fetched explicitly, as a training loop demands (jax.transfer_guard).
            for layer in jax.device_get(attention(jax.device_put(position)))
        ]

    return layers_of


def rounded(array: AnyArray) -> list:
    """Returns an array as nested lists, of numbers with as many digits as a figure can show."""
    digits = np.vectorize(lambda x: float(f"{x:.{SIGNIFICANT_DIGITS}g}"), otypes=[float])
    return digits(array).tolist() if array.size else []
