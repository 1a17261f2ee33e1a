"""Reads a run back: its configuration, its network, its predictions and what its heads attend to."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jaxtyping import Float
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Activations, Images
from attn_cnn_jax.config import spec_of, validate, with_defaults
from attn_cnn_jax.config.network import abstract_model, heads_by_layer
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.builders import Spec
from attn_cnn_jax.data.fingerprint import Fingerprint
from attn_cnn_jax.errors import UserError, in_words, shortened
from attn_cnn_jax.files import is_folder
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import weights
from attn_cnn_jax.runs.checkpoints import (
    all_steps,
    best_step,
    check_depth,
    open_checkpoints,
    read_arrays,
    read_data,
    read_plain,
    steps_in,
)
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.pretrained import located
from attn_cnn_jax.runs.seeds import pick, seeds_of
from attn_cnn_jax.runs.weights import is_weights


class Run(NamedTuple):
    """A run as `load_run` returns it: its configuration, and its network at one step."""

    config: ConfigDict
    step: int
    model: AttentionClassifier | ResNet  # in evaluation mode: called without a key
    seed: int | None = None  # which seed of a run of several (seeds.py); else None
    test: dict[str, Any] | None = None  # the record of metrics.jsonl with the test accuracy at this step
    data: Fingerprint | None = None  # of the data that it was trained on, where that is known

    @property
    def spec(self) -> Spec:
        """What the run keeps of its data set: its mean and standard deviation normalise pictures."""
        return spec_of(self.config)

    def __repr__(self) -> str:
        model = self.config.model
        parameters = sum(array.size for array in split(self.model)[1].values())
        kind = f"ResNet-{model.depth} of {model.layers}s" if isinstance(self.model, ResNet) else ""
        if isinstance(self.model, AttentionClassifier):
            counts = heads_by_layer(model)
            heads = f"{counts[0]} heads each" if len(set(counts)) == 1 else f"{', '.join(map(str, counts))} heads"
            content = f" and content{', gated' if model.gate else ''}" if model.content else ""
            layers = "1 layer" if len(counts) == 1 else f"{len(counts)} layers"
            kind = f"{layers} of attention, {heads}; encoding {model.encoding}{content}"
        shape = "x".join(map(str, model.image_shape))
        return (
            f"Run on {self.config.dataset.name} after step {self.step}, seed {self.seed or self.config.seed}\n"
            f"  {kind}; {parameters:,} parameters, {model.dtype}\n"
            f"  pictures {shape} uint8 -> {model.num_classes} classes"
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by number; () where a run of version 0.1.0 does not know them."""
        return self.spec.class_names

    def predict(self, images: Images, batch_size: int = 100) -> Float[np.ndarray, "b classes"]:
        """Returns the class probabilities of pictures as the data set has them.

        Args:
          images: `(b, H, W, C)` uint8.
          batch_size: pictures per call of the network.

        Returns:
          `(b, classes)` float32.

        Raises:
          UserError: for images of another shape or type.
        """
        once = self._replace(model=merged(self.model))  # not again in every batch
        return once._in_batches(lambda model, x: jax.nn.softmax(model(x)[0]), images, batch_size)

    def attention(self, images: Images | None = None, batch_size: int = 100) -> list[np.ndarray]:
        """Returns the attention probabilities of every head of every layer.

        Args:
          images: `(b, H, W, C)` uint8; needed where attention depends on content, else not read.
          batch_size: pictures per call of the network.

        Returns:
          One array per layer, float32: `(h, i, j, k, l)` where attention does not depend on content, else
          `(b, h, i, j, k, l)`; query pixel `(i, j)`, key pixel `(k, l)`; sums to one over key pixels.

        Raises:
          UserError: for a network without attention, or images that are missing or of another shape or type.
        """
        if not isinstance(self.model, AttentionClassifier):
            raise UserError(f"a {self.config.model.name} has no attention to show")
        if not self.model.depends_on_content:
            return [np.asarray(layer) for layer in self.model.attention(self.config.model.image_shape)]
        if images is None:
            raise UserError("this network's attention depends on content: give images, uint8 (B, H, W, C)")

        def attention(model, x):
            return [layer["attention"] for layer in model(x)[1]["layers"]]

        return self._in_batches(attention, images, batch_size)

    def show(self, images: int = 8, data_dir: str | None = None, height: int = 800) -> Any:
        """Returns the interactive page of this network, which a notebook shows in place.

        Args:
          images: number of test pictures to choose from.
          data_dir: folder of the data set, if not the one used in training. Without the data set there are no test
            pictures; a network whose attention depends on content needs some.
          height: of the frame, in pixels.

        Raises:
          UserError: if the network has no attention to show, or too much.
        """
        # By name, since the page is built on runs and not the other way round.
        return importlib.import_module("attn_cnn_jax.page.inline").inline(self, images, data_dir, height)

    def intermediates(self, images: Images, batch_size: int = 100) -> dict[str, Any]:
        """Returns the logits and what the network computes on the way to them, as NumPy arrays.

        Args:
          images: `(b, H, W, C)` uint8.
          batch_size: pictures per call of the network.

        Returns:
          `logits`, `(b, classes)`, and the named intermediates of the network, pictures first: see
          `AttentionClassifier.__call__`. What does not depend on pictures (position scores, attention without
          content) comes once, without an axis of pictures.

        Raises:
          UserError: for images of another shape or type.
        """

        def all_of_it(model, x):
            logits, intermediates = model(x)
            return {"logits": logits} | intermediates

        return self._in_batches(all_of_it, images, batch_size)

    def export(self, out: str | Path, format: str = "safetensors", note: str = "") -> str:
        """Writes the network for use elsewhere, see attn_cnn_jax.interop.export; returns a line that says what.

        Args:
          out: a folder (for "pytorch" a file) that does not exist yet; it appears whole or not at all.
          format: "safetensors", "jax" (StableHLO), "onnx" or "pytorch" (the authors' release).
          note: a sentence on data or training for the model card.

        Raises:
          UserError: if `out` exists, a package is missing, or the format has no such network.
        """
        # By name, for interop builds on runs and not the other way round.
        return importlib.import_module("attn_cnn_jax.interop.export").export(self, out, format, note)

    def normalised(self, images: Images) -> Activations:
        """Returns pictures as the network takes them: `(b, H, W, C)` uint8 to floating point, UserError if not so.

        Works under `jax.jit` too: `jax.jit(lambda images: run.model(run.normalised(images))[0])` gives logits.
        """
        expected = tuple(self.config.model.image_shape)
        allowed = (
            f"allowed is (B, H, W, {expected[2]}) uint8, "
            f"as in {self.config.dataset.name}, where H, W are {expected[0]}, {expected[1]}"
        )
        try:
            images = images if isinstance(images, jax.Array) else np.asarray(images)
        except (ValueError, TypeError) as error:
            raise UserError(f"images that make no array ({shortened(error)}): {allowed}") from error
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != expected[2] or not images.size:
            raise UserError(f"images of shape {images.shape} and type {images.dtype}: {allowed}")
        downsample = self.config.model.get("downsample", 1)
        if images.shape[1] % downsample or images.shape[2] % downsample:
            height, width = images.shape[1:3]
            raise UserError(f"images of {height}x{width} pixels: allowed are multiples of {downsample} on both sides")
        return normalise(jnp.asarray(images), self.spec.mean, self.spec.std, jnp.dtype(self.config.model.dtype))

    def _in_batches(self, function: Callable[[nnx.Module, jax.Array], Any], images: Images, batch_size: int) -> Any:
        """Applies a jitted `function(model, x)` batch by batch; returns its results joined, as NumPy arrays."""
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise UserError(f"batch_size={batch_size!r}: allowed is an integer from 1")
        skeleton, *arrays = split(self.model)
        jitted = jax.jit(
            in_precision(self.config.train.matmul_precision, lambda arrays, x: function(join(skeleton, *arrays), x))
        )
        x = self.normalised(images)
        # A result has an axis of pictures where its shape follows the size of the batch.
        one, two = (jax.eval_shape(jitted, arrays, jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)) for n in (1, 2))
        parts = [jitted(arrays, x[start : start + batch_size]) for start in range(0, len(x), batch_size)]

        def joined(one, two, *pieces):
            return np.concatenate(pieces) if one.shape != two.shape else np.asarray(pieces[0])

        return jax.tree.map(joined, one, two, *parts)


def load_run(workdir: str | Path, step: int | str = "latest", seed: int | None = None) -> Run:
    """Restores a run that training left, finished or not, on any number of devices, without its data.

    Args:
      workdir: the run directory, a folder that `export` wrote as safetensors, or `pretrained:NAME` (pretrained.py).
      step: "latest", "best" (by validation accuracy; only with a validation split), or the number of a step.
      seed: the seed of the run, or one seed of a run of several (seeds.py); None for the first.

    Raises:
      UserError: if there is no such run, step, seed, or intact checkpoint, or the system cannot read it now.
    """
    workdir = located(workdir)
    try:
        saved = read_config(workdir) if is_folder(workdir) else None
        if saved is None:
            raise UserError(
                f"{workdir} is not a run directory: it has no config.json; train one with train.py --workdir"
            )
        config = known_config(workdir, saved)
        if is_weights(workdir):
            return load_weights(workdir, config, step, seed)
        if not is_folder(workdir / "checkpoints"):
            raise UserError(f"{workdir} has no checkpoint yet")
        while True:
            known = steps_in(workdir / "checkpoints")
            try:
                return load_saved(workdir, saved, step, seed)
            except (UserError, OSError):
                # A training that goes on there may have removed what was being read: then there is a newer one.
                if known == steps_in(workdir / "checkpoints"):
                    raise
    except OSError as error:
        raise UserError(f"{workdir} cannot be read: {in_words(error)}") from error


def load_saved(workdir: Path, saved: ConfigDict, step: int | str, seed: int | None) -> Run:
    """Returns a run as `load_run` does, from its directory, and its configuration as it was saved there."""
    seeds, asked = seeds_of(saved), seed
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        allowed = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
        raise UserError(f"seed={seed!r}: {workdir} has {allowed}")
    with open_checkpoints(workdir, read_only=True) as checkpoints:
        number = find_step(checkpoints, workdir, step, seeds.index(seed))
        inside = ConfigDict(read_plain(checkpoints, number, "config"))
        if asked is not None and seeds_of(inside) != seeds:
            raise UserError(
                f"{workdir / 'config.json'} has seed {seeds[0]}, the checkpoint of step {number} has "
                f"{seeds_of(inside)[0]}, with which it was trained\nrestore config.json as training wrote it"
            )
        config = known_config(workdir, inside)
        check_depth(checkpoints, number, config.model.get("num_layers", 0))
        skeleton, parameters, statistics = split(abstract_model(config.model))
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        several = (len(seeds),) if len(seeds) > 1 else ()
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(several + x.shape, x.dtype, sharding=here),
            {"parameters": parameters, "statistics": statistics},
        )
        data = read_data(checkpoints, number)
        network = pick(read_arrays(checkpoints, number, "network", like), seeds, seed)
    model = join(skeleton, network["parameters"], network["statistics"])
    assert isinstance(model, AttentionClassifier | ResNet)
    several_seed = seed if several else None
    return Run(config, number, model, several_seed, find_test(workdir, number, several_seed), data)


def load_weights(folder: Path, config: ConfigDict, step: int | str, seed: int | None) -> Run:
    """Returns the network of a folder without checkpoints, see weights.py; UserError if it has another step or seed."""
    model, number = weights.read(folder, config)
    if step not in ("latest", number):
        raise UserError(f"step={step!r}: {folder} holds one network, of step {number}")
    if seed not in (None, config.seed):
        raise UserError(f"seed={seed!r}: {folder} has seed {config.seed} alone")
    assert isinstance(model, AttentionClassifier | ResNet)
    return Run(config, number, model, test=find_test(folder, number))


def find_test(workdir: Path, step: int, seed: int | None = None) -> dict[str, Any] | None:
    """Returns the record of metrics.jsonl with the test accuracy at a step; None where there is none to be read."""
    try:
        records = read_metrics(workdir / "metrics.jsonl")
    except (UserError, OSError):  # a network is whole without it
        return None
    found = [each for each in records if each["split"] == "test" and each["step"] == step and each.get("seed") == seed]
    return found[-1] if found else None


def known_config(workdir: Path, config: ConfigDict) -> ConfigDict:
    """Returns a saved configuration with the keys of today; UserError if it has what is not known here."""
    config = with_defaults(config)
    try:
        validate(config)
    except UserError as error:
        raise UserError(f"{workdir} was trained by another version of attn-cnn-jax: {error}") from error
    return config


def find_step(checkpoints: ocp.CheckpointManager, workdir: Path, step: int | str, number: int) -> int:
    """Returns the step of the checkpoint that `step` names, UserError where there is none.

    Args:
      checkpoints: of the run.
      workdir: the run directory, for messages.
      step: as in `load_run`.
      number: of the seed, from 0, whose validation accuracy is the best.
    """
    known = all_steps(checkpoints)
    if not known:
        raise UserError(f"{workdir} has no checkpoint yet")
    found = known[0] if step == "latest" else best_step(checkpoints, number) if step == "best" else step
    if step == "best" and found is None:
        raise UserError(f"{workdir} has no best checkpoint: train with config.dataset.num_validation above 0")
    if found not in known:
        raise UserError(f"step={step!r}: {workdir} has checkpoints of steps {', '.join(map(str, reversed(known)))}")
    return found
