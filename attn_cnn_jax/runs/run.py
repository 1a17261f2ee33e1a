"""A run as it was read back: its configuration, its network, its predictions and what its heads attend to."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from attn_cnn_jax import compiling
from attn_cnn_jax.arrays import Activations, AnyArray, Arrays, Images, SharedAttention
from attn_cnn_jax.config import spec_of
from attn_cnn_jax.config.network import abstract_model, describe, heads_by_layer
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.labels import class_numbers
from attn_cnn_jax.data.sets import Fingerprint, Spec
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.models.classifier import AttentionClassifier, window_side
from attn_cnn_jax.models.pruning import prune
from attn_cnn_jax.models.resizing import resized
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs import by_class
from attn_cnn_jax.runs.evaluate import Logits, numbers_of, predictor, probabilities, program, total


@functools.partial(compiling.jit, static_argnames=("skeleton", "image_shape"))
def network_attention(
    skeleton: Skeleton, image_shape: tuple[int, ...], arrays: Sequence[Arrays]
) -> list[SharedAttention]:
    """Returns the attention of every layer of a position-only network taken apart."""
    return join(skeleton, *arrays).attention(image_shape)  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run as `load_run` returns it: its configuration, and its network at one step.

    Attributes:
      config: of the run.
      step: number of finished steps.
      model: the network, in evaluation mode: called without a key, on `run.normalised(images)`.
      test_record: the record of metrics.jsonl with the test accuracy at this step; None where there is none.
      data: fingerprint of the data that it was trained on, None where that is not known.
      positions: records of positions.jsonl up to this step, oldest first.
      environment: versions and machine that made `test_record`, see environment.py; {} where that is not known.
    """

    config: ConfigDict
    step: int
    model: AttentionClassifier | ResNet
    test_record: dict[str, Any] | None = None
    data: Fingerprint | None = None
    positions: Sequence[dict[str, Any]] = ()
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)

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
        images = self._checked(images, batch_size, own_size=True)
        return probabilities(self.logits(images, batch_size))

    def logits(self, images: Images, batch_size: int = 100) -> Float[np.ndarray, "b classes"]:
        """Returns the logits of images, `(b, classes)` float32.

        Arguments and errors as of `predict`, but images may have any size that the network reads.
        """
        images = self._checked(images, batch_size)
        return np.concatenate(list(self._logits(images, batch_size)))

    def attention(self, images: Images | None = None, batch_size: int = 100) -> list[np.ndarray]:
        """Returns the attention probabilities of every head, one array per layer, float32.

        Each is `(h, i, j, k, l)` where attention does not depend on content: then `images` are not read. Else they are
        needed, as in `predict`, and it is `(b, h, i, j, k, l)`. Query pixel `(i, j)`, key pixel `(k, l)`; sums to one
        over key pixels. UserError for a network without attention.
        """
        model = self.attention_network()
        if not model.depends_on_content:
            with jax.transfer_guard("allow"):
                skeleton, *arrays = split(model)
                return [
                    np.asarray(x) for x in network_attention(skeleton, tuple(self.config.model.image_shape), arrays)
                ]
        if images is None:
            raise UserError("this network's attention depends on content: give images, uint8 (B, H, W, C)")
        return self._in_batches("attention", images, batch_size)

    def intermediates(self, images: Images, batch_size: int = 100) -> dict[str, Any]:
        """Returns `logits`, `(b, classes)`, and the named intermediates of the network, as NumPy arrays, images first.

        See `AttentionClassifier.__call__`. What does not depend on images (position scores, attention without content)
        comes once, without an axis of images. Arguments and errors as of `predict`.
        """
        return self._in_batches("everything", images, batch_size)

    def evaluate(
        self, images: Images, labels: Any, *, mirrored: bool = False, batch_size: int | None = None
    ) -> by_class.ByClass:
        """Returns loss and accuracy on images with labels, each counted once: what training records of them.

        Args:
          images: as in `predict`, also a memory map of more than memory holds; UserError for another size.
          labels: `(b,)` integers, a column or one-hot rows; UserError for what is no class of each image.
          mirrored: classify by the mean of the logits of an image and of its mirror image.
          batch_size: images per call of the network; by default `config.train.eval_batch_size`.
        """
        labels = class_numbers(labels, len(images), self.config.model.num_classes)
        size = self.config.train.eval_batch_size if batch_size is None else batch_size
        if not hasattr(images, "shape"):
            images = self._checked(images, size)
        self._checked(images[:1], size, own_size=True)
        logits = self._logits(images, size)
        if mirrored:
            pairs = zip(logits, self._logits(images, size, mirrored=True), strict=True)
            logits = ((one + other) / 2 for one, other in pairs)
        predicted: list[np.ndarray] = []

        def noted() -> Iterator[np.ndarray]:
            for some in logits:
                predicted.append(some.argmax(axis=1))
                yield some

        found = total(noted(), labels)
        matrix = by_class.confusion(np.concatenate(predicted), labels, self.config.model.num_classes)
        names = self.class_names if len(self.class_names) == len(matrix) else ()
        return by_class.ByClass(found.right, found.count, found.loss, found.balanced, matrix, names)

    def without_heads(self, heads: Iterable[tuple[int, int]]) -> "Run":
        """Returns a new run without some heads: it computes what this one does where their values are zero.

        `heads` are pairs of layer and head, both from 0 as in arrays; tables and figures count them from 1. UserError
        for a head that there is not, or if a layer would have none left.
        """
        model, counts = self.attention_network(), heads_by_layer(self.config.model)
        try:
            removed = {(int(layer), int(head)) for layer, head in heads}
        except (TypeError, ValueError) as error:
            raise UserError(f"heads={shortened(heads)}: allowed are pairs (layer, head), from 0") from error
        if wrong := removed - {(layer, head) for layer, count in enumerate(counts) for head in range(count)}:
            raise UserError(f"{wrong.pop()} is no head: layers, from 0, have {', '.join(map(str, counts))} heads")
        chosen = {layer: {head for other, head in removed if other == layer} for layer in range(len(counts))}
        left = tuple(count - len(chosen[layer]) for layer, count in enumerate(counts))
        if 0 in left:
            raise UserError(f"layer {left.index(0)}, counted from 0, would have no head left")
        # Heads that are left need not fill the grid that they began on.
        run = self._changed(model, num_heads=left if len(set(left)) > 1 else left[0], init="paper")
        fewer = split(abstract_model(run.config.model))[0]
        return dataclasses.replace(run, model=join(fewer, prune(model, chosen), split(model)[2]))

    def at_size(self, size: int | tuple[int, int]) -> "Run":
        """Returns a new run for images of another size, without training; see `models.resizing`.

        Heads look as many times farther as images are larger, patches are as many times larger; a ResNet takes images
        of any size as it is. At the run's own size it is the same network.

        Args:
          size: in pixels, a side or (height, width); UserError if they are no multiples of `downsample`.
        """
        sides: Any = (size, size) if np.ndim(size) == 0 else size
        if len(sides) != 2 or not all(isinstance(side, int | np.integer) for side in sides):
            raise UserError(f"size={size!r}: allowed is an integer, or (height, width), in pixels")
        height, width = int(sides[0]), int(sides[1])
        downsample, before = self.config.model.get("downsample", 1), tuple(self.config.model.image_shape)
        if height < 2 * downsample or width < 2 * downsample or height % downsample or width % downsample:
            raise UserError(f"images of {height}x{width} pixels: allowed are multiples of {downsample}, at least two")
        model, described = self.model, {}
        if isinstance(model, AttentionClassifier):
            model = resized(model, before, (height, width))
            window = window_side(model.embedding.kernel, before[2])
            described["window"] = window if window != downsample else 0
        return self._changed(model, image_shape=(height, width, before[2]), **described)

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
            shape, dtype = parameters[name].shape, parameters[name].dtype
            try:
                new = np.asarray(given, dtype)
            except (TypeError, ValueError):  # rows of several lengths, or text
                new = np.empty(0)
            if new.shape != shape or not np.isfinite(new).all():
                raise UserError(f"centres of layer {layer}, from 0: allowed is {shape}, finite; got {new.shape}")
            parameters = parameters | {name: jnp.asarray(new)}
        return self._changed(join(skeleton, parameters, statistics))

    def normalised(self, images: Images) -> Activations:
        """Returns images as the network takes them: `(b, H, W, C)` uint8 to floating point, UserError if not so.

        Works under `jax.jit` too: `jax.jit(lambda images: run.model(run.normalised(images))[0])` gives logits.
        """
        images = self._checked(images)
        if isinstance(images, np.ndarray):
            images = images.copy()  # JAX reads it after this returns, when its owner may have filled it again
        return normalise(jnp.asarray(images), self.spec.mean, self.spec.std, jnp.dtype(self.config.model.dtype))

    def _checked(self, images: Any, batch_size: Any = 1, *, own_size: bool = False) -> Images:
        """Returns images as an array; UserError unless the network takes them, in batches of this size."""
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise UserError(f"batch_size={batch_size!r}: allowed is an integer from 1")
        height, width, channels = self.config.model.image_shape
        of_data = f"as in {self.config.dataset.name}, where H, W are {height}, {width}"
        allowed = f"allowed is (B, H, W, {channels}) uint8, {of_data}"
        try:
            images = images if isinstance(images, jax.Array) else np.asarray(images)
        except (ValueError, TypeError) as error:
            raise UserError(f"images that make no array ({shortened(error)}): {allowed}") from error
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != channels or not images.size:
            raise UserError(f"images of shape {images.shape} and type {images.dtype}: {allowed}")
        downsample, other = self.config.model.get("downsample", 1), tuple(images.shape[1:3])
        if other[0] % downsample or other[1] % downsample:
            what = f"allowed are multiples of {downsample} on both sides"
            raise UserError(f"images of {other[0]}x{other[1]} pixels: {what}")
        if own_size and other != (height, width):
            advice = f"resize them, or use run.at_size({other})"
            raise UserError(f"images of {other[0]}x{other[1]} pixels: {allowed}; {advice}")
        return images

    def _changed(self, model: Any, **described: Any) -> "Run":
        """Returns a run with another network, which these values of `config.model` describe; it was not trained."""
        values = self.config.to_dict()
        values["model"] |= described
        return dataclasses.replace(self, config=ConfigDict(values), model=model, test_record=None, positions=())

    def attention_network(self) -> AttentionClassifier:
        """Returns the network; UserError where it has no attention."""
        if not isinstance(self.model, AttentionClassifier):
            raise UserError(f"a {self.config.model.name} has no attention to show")
        return self.model

    def _logits(self, images: Images, batch_size: int, *, mirrored: bool = False) -> Iterator[Logits]:
        """Yields the logits of images batch by batch."""
        with jax.transfer_guard("allow"):  # whatever the caller or JAX_TRANSFER_GUARD forbids elsewhere
            shape, count = images.shape[1:], len(images)
            logits = predictor(self.model, self.config, self.spec, shape, min(batch_size, count))
            yield from logits(lambda rows: images[rows][:, :, ::-1] if mirrored else images[rows], count)

    def _in_batches(self, part: str, images: Images, batch_size: int) -> Any:
        """Applies the network batch by batch; returns one of `evaluate.PARTS` of all images, as NumPy."""
        images, (skeleton, *parts) = self._checked(images, batch_size), split(self.model)
        compiled = program(part, skeleton, numbers_of(self.config, self.spec), None, None)
        call = functools.partial(compiled, tuple(parts))
        with jax.transfer_guard("allow"):  # whatever the caller or JAX_TRANSFER_GUARD forbids elsewhere
            results = [call(images[start : start + batch_size]) for start in range(0, len(images), batch_size)]
            results = jax.tree.map(np.asarray, results)
        if len(results) == 1:
            return results[0]
        # A result has an axis of images where its shape follows the size of the batch.
        more = jax.eval_shape(call, jax.ShapeDtypeStruct((batch_size + 1, *images.shape[1:]), np.uint8))

        def joined(more, first, *others):
            return np.concatenate([first, *others]) if more.shape != first.shape else first

        return jax.tree.map(joined, more, *results)
