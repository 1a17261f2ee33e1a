"""A run as it was read back: its configuration, its network, its predictions and what its heads attend to."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Activations, Images
from attn_cnn_jax.config import spec_of
from attn_cnn_jax.config.network import heads_by_layer
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.builders import Spec
from attn_cnn_jax.data.fingerprint import Fingerprint
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.models.variables import join, split


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
        return self._merged()._in_batches(lambda model, x: jax.nn.softmax(model(x)[0]), images, batch_size)

    def logits(self, images: Images, batch_size: int = 100) -> Float[np.ndarray, "b classes"]:
        """Returns the logits of pictures, `(b, classes)`; arguments and errors as of `predict`."""
        return self._merged()._in_batches(lambda model, x: model(x)[0], images, batch_size)

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
        return importlib.import_module("attn_cnn_jax.page.inline").show(self, images, data_dir, height)

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

    def _merged(self) -> "Run":
        """Returns the run with fewer linear maps: once, and not again in every batch."""
        return self._replace(model=merged(self.model, self.config.model.image_shape))

    def _in_batches(self, function: Callable[[nnx.Module, jax.Array], Any], images: Images, batch_size: int) -> Any:
        """Applies a jitted `function(model, x)` batch by batch; returns its results joined, as NumPy arrays."""
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise UserError(f"batch_size={batch_size!r}: allowed is an integer from 1")
        skeleton, *arrays = split(self.model)
        jitted = jax.jit(
            in_precision(self.config.train.matmul_precision, lambda arrays, x: function(join(skeleton, *arrays), x))
        )
        x = self.normalised(images)
        parts = [jitted(arrays, x[start : start + batch_size]) for start in range(0, len(x), batch_size)]
        if len(parts) == 1:
            return jax.tree.map(np.asarray, parts[0])
        # A result has an axis of pictures where its shape follows the size of the batch.
        more = jax.eval_shape(jitted, arrays, jax.ShapeDtypeStruct((batch_size + 1, *x.shape[1:]), x.dtype))

        def joined(more, first, *others):
            return np.concatenate([first, *others]) if more.shape != first.shape else np.asarray(first)

        return jax.tree.map(joined, more, *parts)
