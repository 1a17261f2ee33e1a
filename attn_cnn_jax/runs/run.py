"""A run as it was read back: its configuration, its network, its predictions and what its heads attend to."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict
from scipy.special import log_softmax

from attn_cnn_jax.arrays import Activations, AnyArray, Arrays, Images, Labels
from attn_cnn_jax.config import spec_of
from attn_cnn_jax.config.network import abstract_model, describe, heads_by_layer
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sets import Fingerprint, Spec
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.pruning import prune
from attn_cnn_jax.models.resizing import resized
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.models.variables import Skeleton, join, split

AT_ONCE = 5000  # images in memory, of a set that is not


# What methods of `Run` return of the logits and intermediates of a network.
PARTS: dict[str, Callable[[jax.Array, dict[str, Any]], Any]] = {
    "logits": lambda logits, _: logits,
    "probabilities": lambda logits, _: jax.nn.softmax(logits),
    "attention": lambda _, intermediates: [layer["attention"] for layer in intermediates["layers"]],
    "everything": lambda logits, intermediates: {"logits": logits} | intermediates,
}


@functools.partial(jax.jit, static_argnames=("part", "skeleton", "precision"))
def applied(part: str, skeleton: Skeleton, precision: str, arrays: Sequence[Arrays], x: jax.Array) -> Any:
    """Returns one of PARTS of a network taken apart; compiled once for all networks of a structure."""
    return in_precision(precision, lambda x: PARTS[part](*join(skeleton, *arrays)(x)))(x)  # pyright: ignore[reportCallIssue]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a network makes of some images."""

    right: int  # images whose own class is the most probable one
    count: int  # of all images
    loss: float  # mean cross-entropy, nats

    @property
    def accuracy(self) -> float:
        """Share of the images, 0 to 1."""
        return self.right / self.count


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run as `load_run` returns it: its configuration, and its network at one step.

    Attributes:
      config: of the run.
      step: number of finished steps.
      model: the network, in evaluation mode: called without a key.
      test_record: the record of metrics.jsonl with the test accuracy at this step; None where there is none.
      data: fingerprint of the data that it was trained on, None where that is not known.
      positions: records of positions.jsonl up to this step, oldest first.
    """

    config: ConfigDict
    step: int
    model: AttentionClassifier | ResNet
    test_record: dict[str, Any] | None = None
    data: Fingerprint | None = None
    positions: Sequence[dict[str, Any]] = ()

    @property
    def spec(self) -> Spec:
        """What the run keeps of its data set: its mean and standard deviation normalise images."""
        return spec_of(self.config)

    def __repr__(self) -> str:
        model, dataset = self.config.model, self.config.dataset.name
        parameters = sum(array.size for array in split(self.model)[1].values())
        return (
            f"Run on {dataset} after step {self.step}, seed {self.config.seed}\n"
            f"  {describe(model)}; {parameters:,} parameters, {model.dtype}\n"
            f"  images {'x'.join(map(str, model.image_shape))} uint8 -> {model.num_classes} classes"
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by number; () where they are not known."""
        return self.spec.class_names

    def predict(self, images: Images, batch_size: int = 100) -> Float[np.ndarray, "b classes"]:
        """Returns the class probabilities, `(b, classes)` float32, of images as the data set has them.

        Args:
          images: `(b, H, W, C)` uint8; UserError for another shape or type.
          batch_size: images per call of the network.
        """
        return self._merged()._in_batches("probabilities", images, batch_size)

    def logits(self, images: Images, batch_size: int = 100) -> Float[np.ndarray, "b classes"]:
        """Returns the logits of images, `(b, classes)`; arguments and errors as of `predict`."""
        return self._merged()._in_batches("logits", images, batch_size)

    def attention(self, images: Images | None = None, batch_size: int = 100) -> list[np.ndarray]:
        """Returns the attention probabilities of every head, one array per layer, float32.

        Each is `(h, i, j, k, l)` where attention does not depend on content: then `images` are not read. Else they are
        needed, as in `predict`, and it is `(b, h, i, j, k, l)`. Query pixel `(i, j)`, key pixel `(k, l)`; sums to one
        over key pixels. UserError for a network without attention.
        """
        model = self.attention_network()
        if not model.depends_on_content:
            with jax.transfer_guard("allow"):
                return [np.asarray(layer) for layer in model.attention(self.config.model.image_shape)]
        if images is None:
            raise UserError("this network's attention depends on content: give images, uint8 (B, H, W, C)")
        return self._in_batches("attention", images, batch_size)

    def intermediates(self, images: Images, batch_size: int = 100) -> dict[str, Any]:
        """Returns `logits`, `(b, classes)`, and the named intermediates of the network, as NumPy arrays, images first.

        See `AttentionClassifier.__call__`. What does not depend on images (position scores, attention without content)
        comes once, without an axis of images. Arguments and errors as of `predict`.
        """
        return self._in_batches("everything", images, batch_size)

    def evaluate(self, images: Images, labels: Labels, *, mirrored: bool = False, batch_size: int = 100) -> Evaluation:
        """Returns loss and accuracy on images with labels, each counted once.

        Args:
          images: as in `predict`, also a memory map of more than memory holds.
          labels: `(b,)` integers; UserError for another number of them.
          mirrored: classify by the mean of the logits of an image and of its mirror image.
          batch_size: images per call of the network.
        """
        if len(images) != len(labels):
            raise UserError(f"{len(images)} images and {len(labels)} labels: allowed is one label per image")
        right, loss = 0, 0.0
        for start in range(0, len(labels), AT_ONCE):
            some, known = images[start : start + AT_ONCE], np.asarray(labels[start : start + AT_ONCE])
            logits = self.logits(some, batch_size)
            if mirrored:
                logits = (logits + self.logits(some[:, :, ::-1], batch_size)) / 2
            right += int((logits.argmax(axis=1) == known).sum())
            loss -= float(log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(known)), known].sum())
        return Evaluation(right, len(labels), loss / len(labels))

    def without_heads(self, heads: Iterable[tuple[int, int]]) -> "Run":
        """Returns a new run without some heads: it computes what this one does where their values are zero.

        `heads` are pairs of layer and head, both from 0 as in arrays; tables and figures count them from 1. UserError
        for a head that there is not, or if a layer would have none left.
        """
        model, counts, removed = self.attention_network(), heads_by_layer(self.config.model), set(heads)
        if wrong := removed - {(layer, head) for layer, count in enumerate(counts) for head in range(count)}:
            raise UserError(f"{wrong.pop()} is no head: layers, from 0, have {', '.join(map(str, counts))} heads")
        chosen = {layer: {head for other, head in removed if other == layer} for layer in range(len(counts))}
        left = tuple(count - len(chosen[layer]) for layer, count in enumerate(counts))
        if 0 in left:
            raise UserError(f"layer {left.index(0)}, counted from 0, would have no head left")
        # Heads that are left need not fill the grid that they began on.
        run = self._changed(model, num_heads=left if len(set(left)) > 1 else left[0], init="paper")
        fewer: Any = abstract_model(run.config.model)
        for block, before in zip(fewer.blocks, model.blocks, strict=True):
            block.attention.score_factor = before.attention.score_factor
        return dataclasses.replace(run, model=join(split(fewer)[0], prune(model, chosen), split(model)[2]))

    def at_size(self, size: int | tuple[int, int], *, log_pixels: bool = False) -> "Run":
        """Returns a new run for images of another size, without training; see `models.resizing`.

        Heads look as many times farther as images are larger, patches are as many times larger; a ResNet takes images
        of any size as it is. At the run's own size it is the same network.

        Args:
          size: in pixels, a side or (height, width); UserError if they are no multiples of `downsample`.
          log_pixels: whether scores of attention are multiplied by `log n / log n_train`.
        """
        height, width = (size, size) if isinstance(size, int) else size
        downsample, before = self.config.model.get("downsample", 1), tuple(self.config.model.image_shape)
        if height < 2 * downsample or width < 2 * downsample or height % downsample or width % downsample:
            raise UserError(f"images of {height}x{width} pixels: allowed are multiples of {downsample}, at least two")
        model = self.model
        if isinstance(model, AttentionClassifier):
            model = resized(model, before[:2], (height, width), log_pixels=log_pixels)
        return self._changed(model, image_shape=(height, width, before[2]))

    def with_centres(self, centres: Sequence[Float[AnyArray, "h 2"] | None]) -> "Run":
        """Returns a new run whose heads look elsewhere: with other centres of a quadratic encoding.

        `centres` are one array per layer, rows and columns in pixels from the query; None leaves a layer as it is.
        UserError if the encoding has no centres, or arrays are of another number or shape, or not finite.
        """
        skeleton, parameters, statistics = split(self.attention_network())
        if len(centres) != self.config.model.num_layers:
            raise UserError(f"centres of {len(centres)} layers: the network has {self.config.model.num_layers}")
        for layer, given in enumerate(centres):
            if given is None:
                continue
            name = f"blocks.{layer}.attention.position.centre"
            if name not in parameters:
                raise UserError(f"the encoding {self.config.model.encoding} has no centres: allowed are quadratic ones")
            new, shape = np.asarray(given, np.float32), parameters[name].shape
            if new.shape != shape or not np.isfinite(new).all():
                raise UserError(f"centres of layer {layer}, from 0: allowed is {shape}, finite; got {new.shape}")
            parameters = parameters | {name: jnp.asarray(new)}
        return self._changed(join(skeleton, parameters, statistics))

    def normalised(self, images: Images) -> Activations:
        """Returns images as the network takes them: `(b, H, W, C)` uint8 to floating point, UserError if not so.

        Works under `jax.jit` too: `jax.jit(lambda images: run.model(run.normalised(images))[0])` gives logits.
        """
        height, width, channels = self.config.model.image_shape
        of_data = f"as in {self.config.dataset.name}, where H, W are {height}, {width}"
        allowed = f"allowed is (B, H, W, {channels}) uint8, {of_data}"
        try:
            images = images if isinstance(images, jax.Array) else np.asarray(images)
        except (ValueError, TypeError) as error:
            raise UserError(f"images that make no array ({shortened(error)}): {allowed}") from error
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != channels or not images.size:
            raise UserError(f"images of shape {images.shape} and type {images.dtype}: {allowed}")
        downsample, (height, width) = self.config.model.get("downsample", 1), images.shape[1:3]
        if height % downsample or width % downsample:
            raise UserError(f"images of {height}x{width} pixels: allowed are multiples of {downsample} on both sides")
        return normalise(jnp.asarray(images), self.spec.mean, self.spec.std, jnp.dtype(self.config.model.dtype))

    def _changed(self, model: Any, **described: Any) -> "Run":
        """Returns a run with another network, which these values of `config.model` describe."""
        values = self.config.to_dict()
        values["model"] |= described
        return dataclasses.replace(self, config=ConfigDict(values), model=model, test_record=None)

    def attention_network(self) -> AttentionClassifier:
        """Returns the network; UserError where it has no attention."""
        if not isinstance(self.model, AttentionClassifier):
            raise UserError(f"a {self.config.model.name} has no attention to show")
        return self.model

    def _merged(self) -> "Run":
        """Returns the run with fewer linear maps: once, and not again in every batch."""
        return dataclasses.replace(self, model=merged(self.model, self.config.model.image_shape))

    def _in_batches(self, part: str, images: Images, batch_size: int) -> Any:
        """Applies the network batch by batch; returns one of PARTS, of all images, as NumPy arrays."""
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise UserError(f"batch_size={batch_size!r}: allowed is an integer from 1")
        skeleton, *arrays = split(self.model)
        call = functools.partial(applied, part, skeleton, self.config.train.matmul_precision, arrays)
        with jax.transfer_guard("allow"):  # whatever the caller or JAX_TRANSFER_GUARD forbids elsewhere
            x = self.normalised(images)
            parts = [call(x[start : start + batch_size]) for start in range(0, len(x), batch_size)]
            parts = jax.tree.map(np.asarray, parts)
        if len(parts) == 1:
            return parts[0]
        # A result has an axis of images where its shape follows the size of the batch.
        more = jax.eval_shape(call, jax.ShapeDtypeStruct((batch_size + 1, *x.shape[1:]), x.dtype))

        def joined(more, first, *others):
            return np.concatenate([first, *others]) if more.shape != first.shape else first

        return jax.tree.map(joined, more, *parts)
