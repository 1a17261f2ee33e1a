"""Measures how convolutional a network is: its attention layers replaced by their KxK convolutions.

Weights and substitutes are those of theorem/to_convolution.py. Where attention depends on content, its mean over test
images takes its place. The network is applied layer by layer, so that a program serves all layers and kernel sizes.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from attn_cnn_jax import compiling
from attn_cnn_jax.analysis import SUBSTITUTES, TEST_IMAGES
from attn_cnn_jax.analysis.test_images import first_images, grid, mean_attention
from attn_cnn_jax.arrays import Activations, AnyArray, Arrays, Grid, SharedAttention
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.attention.cpu import dense
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem import to_convolution

ERROR_IMAGES = 100
BATCH = 100  # images at a time, at most


class GivenAttention(nnx.Module):
    """A self-attention layer with its attention replaced by `(h, i, j, k, l)`; its value and output maps stay."""

    depends_on_content = False

    def __init__(self, layer: SelfAttention, attention: SharedAttention):
        self.layer, self.target = layer, layer.target
        self.attention = nnx.Variable(attention)

    def __call__(self, x: Activations, key: PRNGKeyArray | None = None) -> Float[Array, "b H W o"]:
        pixels = x.shape[1] * x.shape[2]
        return dense(self.attention[...].reshape(-1, pixels, pixels), x, self.layer.maps()) + self.layer.bias

    def with_intermediates(
        self, x: Activations, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b H W o"], dict[str, Any]]:
        """The same, and the attention that is given; it has no scores."""
        return self(x, key), {"attention": self.attention[...], "position_scores": {}, "content_scores": {}}


class Result(NamedTuple):
    """What one kernel size costs.

    Attributes:
      kernel_size: K.
      accuracy: by substitute, test accuracy with the first 1, 2, ... layers replaced, `(layers,)`.
      error: of every layer's convolution with zeros beyond the border, on the original network's activations.
      mass_inside: attention of interior queries inside the kernel, one `(h,)` per layer.
    """

    kernel_size: int
    accuracy: dict[str, np.ndarray]
    error: list[to_convolution.OutputError]
    mass_inside: list[np.ndarray]


def replace_first(model: AttentionClassifier, attention: Sequence[Float[AnyArray, "_ i j k l"]]) -> AttentionClassifier:
    """Returns a copy of a network whose first layers attend as given, one array per layer."""
    model = nnx.clone(model)
    for block, given in zip(model.blocks, attention, strict=False):
        # A block calls it as it calls self-attention.
        block.attention = GivenAttention(block.attention, given)  # pyright: ignore[reportAttributeAccessIssue]
    return model


class Kernel(NamedTuple):
    """A kernel size as arrays, so that one program serves all sizes up to the largest, `r` rows and `t` columns.

    Attributes:
      read: by axis, the weight of a query and a key in an entry of the kernel: a mean over interior queries.
      zeros, edge: by axis, one where an entry leads from query to key.
      interior: by axis, the weight of a query in a mean over interior queries.
    """

    read: tuple[Float[np.ndarray, "r i k"], Float[np.ndarray, "t j l"]]
    zeros: tuple[Float[np.ndarray, "r i k"], Float[np.ndarray, "t j l"]]
    edge: tuple[Float[np.ndarray, "r i k"], Float[np.ndarray, "t j l"]]
    interior: tuple[Float[np.ndarray, " i"], Float[np.ndarray, " j"]]


def kernel_of(size: int, largest: int, grid: Grid) -> Kernel:
    """Returns a kernel size on a grid of pixels, filled up with zeros to the largest size."""

    def read(pixels: int) -> np.ndarray:
        queries, keys, inside = to_convolution.lookup(size, pixels)
        weights, entries = np.zeros((largest, pixels, pixels)), np.arange(size)[:, None]
        np.add.at(weights, (entries, queries, keys), inside[:, None] / queries.shape[1])
        return weights

    def taps(padding: str) -> Callable[[int], np.ndarray]:
        more = (0, largest - size), (0, 0), (0, 0)
        return lambda pixels: np.pad(to_convolution.taps(size, pixels, padding), more)

    def interior(pixels: int) -> np.ndarray:
        inner = to_convolution.interior(size, pixels)
        return np.bincount(inner, minlength=pixels) / len(inner)

    parts: Any = (read, taps("zeros"), taps("edge"), interior)
    return Kernel._make(tuple(of_axis(pixels).astype(np.float32) for pixels in grid) for of_axis in parts)


@compiling.jit
def substitutes(
    attention: SharedAttention, kernel: Kernel
) -> tuple[dict[str, Float[Array, "h i j k l"]], Float[Array, " h"]]:
    """Returns all `SUBSTITUTES` for a layer's attention, and its attention inside the kernel, of interior queries."""
    einsum = functools.partial(jnp.einsum, precision="highest")
    weights = einsum("hijkl,rik,tjl->hrt", attention, *kernel.read)
    found = {name: einsum("hrt,rik,tjl->hijkl", weights, *getattr(kernel, name)) for name in ("zeros", "edge")}
    rows, columns = (taps.max(axis=0) for taps in kernel.zeros)
    window = (rows[:, None, :, None] * columns[None, :, None, :])[None]
    outside = einsum("hijkl,i,j->h", attention * (1 - window), *kernel.interior)
    return found | {"truncated": attention * window}, 1 - outside


FUNCTIONS: dict[str, Callable[[Any, Array], Array]] = {  # of a network, a block or a layer
    "embedded": lambda model, images: model.embedded(images),
    "called": lambda module, x: module(x),
    "read": lambda block, x: block.with_intermediates(x)[1]["input"],  # by its attention
    "predicted": lambda model, x: model.classified(x)[0].argmax(axis=1),
}


@functools.lru_cache(maxsize=64)
def applied(function: str, skeleton: Skeleton, precision: str) -> compiling.Program:
    """Returns one of FUNCTIONS, jitted, of the arrays of a module; one for all layers of a structure."""

    def of_arrays(arrays: Sequence[Arrays], x: Array) -> Any:
        return in_precision(precision, FUNCTIONS[function])(join(skeleton, *arrays), x)

    return compiling.jit(of_arrays)


@jax.transfer_guard("allow")  # whatever the caller or JAX_TRANSFER_GUARD forbids elsewhere
def measure_run(
    run: Run,
    kernel_sizes: tuple[int, ...],
    *,
    num_images: int | None = None,
    test_images: int | None = None,
    data_dir: str | Path | None = None,
    labelled: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[float, list[Result]]:
    """Returns the test accuracy of a run's network, and for each kernel size what replacing its layers changes.

    Attention that depends on content is averaged over `num_images` test images, `AVERAGED` of them by default. Accuracy
    is measured on `test_images`, or on labelled ones in their place, of which the first ERROR_IMAGES serve for the
    output error. UserError for a network without attention, a kernel beyond all shifts, or data that is not there.
    """
    model, most = run.attention_network(), 2 * max(grid(run)) - 1
    if max(kernel_sizes) > most:
        raise UserError(f"kernel size {max(kernel_sizes)}: allowed is up to {most}, which reads the whole image")
    images, labels = labelled or first_images(run, test_images, data_dir, TEST_IMAGES)
    attention = [jnp.asarray(layer, jnp.float32) for layer in mean_attention(run, num_images, data_dir)]
    substituted = replace_first(model, attention)
    network, precision, normalised = split(model), run.config.train.matmul_precision, compiling.jit(run.normalised)
    own, own_attention = zip(*((split(block), split(block.attention)) for block in model.blocks), strict=True)
    given, given_attention = zip(*((split(block), split(block.attention)) for block in substituted.blocks), strict=True)

    programs: dict[Any, compiling.Program] = {}

    def call(function: str, module: Any, x: Any, attends: SharedAttention | None = None) -> Any:
        skeleton, parameters, others = module
        key = function, id(skeleton)  # to compare skeletons takes as long as a small layer
        if key not in programs:
            programs[key] = applied(function, skeleton, precision)
        if attends is not None:
            others = others | {name: attends for name in others if name in ("attention", "attention.attention")}
        return programs[key]((parameters, others), x)

    def rest(x: Activations, first: int) -> Array:
        """The classes that the network's own layers from `first` on predict."""
        for block in own[first:]:
            x = call("called", block, x)
        return call("predicted", network, x)

    count = -(-len(images) // BATCH)
    filled = np.resize(images, (-(-len(images) // count) * count, *images.shape[1:]))  # the first images again
    batches = [call("embedded", network, normalised(batch)) for batch in np.split(filled, count)]

    def accuracy(predictions: Sequence[Array]) -> float:
        return float((np.concatenate(predictions)[: len(labels)] == labels).mean())

    def accuracies(attention: Sequence[SharedAttention]) -> np.ndarray:
        """Accuracy with the first 1, 2, ... layers replaced: a layer more continues from those before it."""
        predictions = [[] for _ in attention]
        for x in batches:
            for n, attends in enumerate(attention):
                x = call("called", given[n], x, attends)
                predictions[n].append(rest(x, n + 1))
        return np.array([accuracy(of_layer) for of_layer in predictions])

    x, seen = call("embedded", network, normalised(images[:ERROR_IMAGES])), []
    for block in own:
        seen.append(call("read", block, x))
        x = call("called", block, x)
    expected = [call("called", layer, x) for layer, x in zip(own_attention, seen, strict=True)]
    largest, results = max(kernel_sizes), []
    for size in kernel_sizes:
        kernel = kernel_of(size, largest, (attention[0].shape[1], attention[0].shape[2]))
        by_kind, inside = zip(*(substitutes(layer, kernel) for layer in attention), strict=True)
        actual = [
            call("called", layer, x, of_layer["zeros"])
            for layer, x, of_layer in zip(given_attention, seen, by_kind, strict=True)
        ]
        errors = [
            to_convolution.output_error(*both, block.attention.bias.ravel(), size)
            for both, block in zip(zip(expected, actual, strict=True), model.blocks, strict=True)
        ]
        right = {kind: accuracies([of_layer[kind] for of_layer in by_kind]) for kind in SUBSTITUTES}
        results.append(Result(size, right, errors, [np.asarray(of_layer) for of_layer in inside]))
    return accuracy([rest(x, 0) for x in batches]), results
