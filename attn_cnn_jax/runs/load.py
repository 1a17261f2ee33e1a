"""A run read back: its configuration, its network, its predictions and what its heads attend to."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config import validate, with_defaults
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sources import SPECS
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.models import create_model
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.checkpoints import all_steps, best_step, open_checkpoints, read_arrays, read_plain
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.seeds import pick, seeds_of


class Run(NamedTuple):
    """What `load_run` returns."""

    config: ConfigDict
    step: int
    model: nnx.Module  # in evaluation mode: called without a key
    seed: int | None = None  # of a run of several seeds, which; else None

    def predict(self, images: np.ndarray, batch_size: int = 100) -> np.ndarray:
        """Class probabilities of pictures as the data set has them.

        Args:
          images: `(B, H, W, C)` uint8.
          batch_size: pictures computed at once.

        Returns:
          `(B, classes)` float32.
        """
        once = self._replace(model=merged(self.model))  # not again in every batch
        return once._in_batches(lambda model, x: jax.nn.softmax(model(x)), images, batch_size)

    def attention(self, images: np.ndarray | None = None, batch_size: int = 100) -> list[np.ndarray]:
        """What every head of every layer attends to.

        Args:
          images: `(B, H, W, C)` uint8; needed where attention depends on content, else not read.
          batch_size: pictures computed at once.

        Returns:
          One array a layer, float32: `(h, i, j, k, l)` where the network's attention does not depend on
          content, else `(B, h, i, j, k, l)`; query pixel `(i, j)`, key pixel `(k, l)`, sums to one over keys.
        """
        if self.config.model.name != "attention":
            raise UserError(f"a {self.config.model.name} has no attention to show")
        if not self.model.depends_on_content:
            return [np.asarray(layer) for layer in self.model.attention(self.config.model.image_shape)]
        if images is None:
            raise UserError("this network's attention depends on content: give images, uint8 (B, H, W, C)")
        return self._in_batches(lambda model, x: model(x, return_attention=True)[1], images, batch_size)

    def normalised(self, images: np.ndarray) -> jax.Array:
        """Pictures as the network takes them: `(B, H, W, C)` uint8 to floating point."""
        expected = tuple(self.config.model.image_shape)
        allowed = (
            f"allowed is (B, H, W, {expected[2]}) uint8, "
            f"as in {self.config.dataset.name}, where H, W are {expected[0]}, {expected[1]}"
        )
        try:
            images = np.asarray(images)
        except (ValueError, TypeError) as error:
            raise UserError(f"images that make no array ({shortened(error)}): {allowed}") from error
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != expected[2] or not images.size:
            raise UserError(f"images of shape {images.shape} and type {images.dtype}: {allowed}")
        downsample = self.config.model.get("downsample", 1)
        if images.shape[1] % downsample or images.shape[2] % downsample:
            height, width = images.shape[1:3]
            raise UserError(f"images of {height}x{width} pixels: allowed are multiples of {downsample} on both sides")
        spec = SPECS[self.config.dataset.name]
        return normalise(jnp.asarray(images), spec.mean, spec.std, jnp.dtype(self.config.model.dtype))

    def _in_batches(self, function, images, batch_size):
        """Applies a jitted `function(model, x)` batch by batch and joins what it returns."""
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise UserError(f"batch_size={batch_size!r}: allowed is an integer from 1")
        skeleton, *arrays = split(self.model)
        jitted = jax.jit(lambda arrays, x: function(join(skeleton, *arrays), x))
        x = self.normalised(images)
        parts = [jitted(arrays, x[start : start + batch_size]) for start in range(0, len(x), batch_size)]
        return jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts)


def load_run(workdir: str | Path, step: int | str = "latest", seed: int | None = None) -> Run:
    """Restores a run that `train.py` left, finished or not, on any number of devices, without its data.

    Args:
      workdir: the run directory.
      step: "latest", "best" (by validation accuracy; only with a validation split), or a step's number.
      seed: which of the run's seeds, `config.seed` to `config.seed + config.train.num_seeds - 1`; None for the first.

    Raises:
      UserError: if there is no such run, step, seed, or intact checkpoint, or the system cannot read it now.
    """
    workdir = Path(workdir)
    if not (workdir / "config.json").is_file():
        raise UserError(f"{workdir} is not a run directory: it has no config.json; train one with train.py --workdir")
    if not (workdir / "checkpoints").is_dir():
        raise UserError(f"{workdir} has no checkpoint yet")
    known = known_config(workdir, read_config(workdir))
    seeds = seeds_of(known)
    seed = known.seed if seed is None else seed
    if seed not in seeds:
        allowed = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
        raise UserError(f"seed={seed!r}: {workdir} has {allowed}")
    with open_checkpoints(workdir, read_only=True) as checkpoints:
        number = find_step(checkpoints, workdir, step, seed - known.seed)
        config = known_config(workdir, ConfigDict(read_plain(checkpoints, number, "config")))
        skeleton, parameters, statistics = split(nnx.eval_shape(lambda: create_model(config.model, rngs=nnx.Rngs(0))))
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        several = (len(seeds),) if len(seeds) > 1 else ()
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(several + x.shape, x.dtype, sharding=here),
            {"parameters": parameters, "statistics": statistics},
        )
        network = pick(config, read_arrays(checkpoints, number, "network", like), seed)
    model = join(skeleton, network["parameters"], network["statistics"])
    return Run(config, number, model, seed if several else None)


def known_config(workdir: Path, config: ConfigDict) -> ConfigDict:
    """A run's configuration with today's defaults for what it lacks; UserError if it has what is not known here."""
    config = with_defaults(config)
    try:
        validate(config)
    except UserError as error:
        raise UserError(f"{workdir} was trained by another version of attn-cnn-jax: {error}") from error
    return config


def find_step(checkpoints: ocp.CheckpointManager, workdir: Path, step: int | str, seed: int) -> int:
    """The number of the checkpoint that `step` names, of a seed counted from 0; UserError where there is none."""
    known = all_steps(checkpoints)
    if not known:
        raise UserError(f"{workdir} has no checkpoint yet")
    number = {"latest": known[0], "best": best_step(checkpoints, seed)}.get(step, step)
    if step == "best" and number is None:
        raise UserError(f"{workdir} has no best checkpoint: train with config.dataset.num_validation above 0")
    if number not in known:
        raise UserError(f"step={step!r}: {workdir} has checkpoints of steps {', '.join(map(str, reversed(known)))}")
    return number
