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
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import create_model
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.training.checkpoints import best_step, open_checkpoints, read_arrays, read_plain
from attn_cnn_jax.training.files import read_config
from attn_cnn_jax.training.seeds import pick, seeds_of


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
        return self._in_batches(lambda model, x: jax.nn.softmax(model(x)), images, batch_size)

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
        images = np.asarray(images)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != expected[2] or not len(images):
            raise UserError(
                f"images of shape {images.shape} and type {images.dtype}: allowed is (B, H, W, {expected[2]}) uint8, "
                f"as in {self.config.dataset.name}, where H, W are {expected[0]}, {expected[1]}"
            )
        spec = SPECS[self.config.dataset.name]
        return normalise(jnp.asarray(images), spec.mean, spec.std, jnp.dtype(self.config.model.dtype))

    def _in_batches(self, function, images, batch_size):
        """Applies a jitted `function(model, x)` batch by batch and joins what it returns."""
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
      UserError: if there is no such run, step, seed, or intact checkpoint.
    """
    workdir = Path(workdir)
    if read_config(workdir) is None:
        raise UserError(f"{workdir} is not a run directory: it has no config.json; train one with train.py --workdir")
    if not (workdir / "checkpoints").is_dir():
        raise UserError(f"{workdir} has no checkpoint yet")
    config = with_defaults(read_config(workdir))
    seeds = seeds_of(config)
    seed = config.seed if seed is None else seed
    if seed not in seeds:
        known = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
        raise UserError(f"seed={seed!r}: {workdir} has {known}")
    with open_checkpoints(workdir, config, read_only=True) as checkpoints:
        number = find_step(checkpoints, workdir, step, seed - config.seed)
        config = with_defaults(ConfigDict(read_plain(checkpoints, number, "config")))
        validate(config)
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


def find_step(checkpoints: ocp.CheckpointManager, workdir: Path, step: int | str, seed: int) -> int:
    """The number of the checkpoint that `step` names, of a seed counted from 0; UserError where there is none."""
    known = sorted(checkpoints.all_steps())
    if not known:
        raise UserError(f"{workdir} has no checkpoint yet")
    number = {"latest": checkpoints.latest_step(), "best": best_step(checkpoints, seed)}.get(step, step)
    if step == "best" and number is None:
        raise UserError(f"{workdir} has no best checkpoint: train with config.dataset.num_validation above 0")
    if number not in known:
        raise UserError(f"step={step!r}: {workdir} has checkpoints of steps {', '.join(map(str, known))}")
    return number
