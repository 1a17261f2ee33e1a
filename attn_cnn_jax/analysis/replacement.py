"""A trained attention network with its first layers replaced by convolutions, and what that costs."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from attn_cnn_jax.arrays import Activations, Arrays, SharedAttention
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.attention.cpu import dense
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.theorem.to_convolution import (
    OutputError,
    convolved,
    mass_outside,
    output_error,
    shift_weights,
    truncated,
)

# What stands in for a layer: a convolution with zeros or repeated pixels beyond the border, or the layer's own
# attention where it lies in the window.
SUBSTITUTES = ("zeros", "edge", "truncated")


class Given(nnx.Variable):
    """Attention that is given, not learned."""


class GivenAttention(nnx.Module):
    """A self-attention layer with its attention replaced; its value and output maps stay.

    Attributes:
      layer: the layer.
      attention: what each query takes of each key, `(h, i, j, k, l)`.
    """

    def __init__(self, layer: SelfAttention, attention: SharedAttention):
        self.layer = layer
        self.attention = Given(attention)

    depends_on_content = False

    def __call__(self, x: Activations, key: PRNGKeyArray | None = None) -> Float[Array, "b H W o"]:
        """Applies the given attention to the values."""
        _, height, width, _ = x.shape
        attention = self.attention[...].reshape(-1, height * width, height * width)
        return dense(attention, x, self.layer.maps()) + self.layer.bias

    def with_intermediates(
        self, x: Activations, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b H W o"], dict[str, Any]]:
        """The same, and the attention that is given; no scores lie behind it."""
        none = {"position_scores": {}, "content_scores": {}, "separate_scores": {}}
        return self(x, key), {"attention": self.attention[...], **none}


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
    error: list[OutputError]
    mass_inside: list[np.ndarray]


def substitute(attention: SharedAttention, kernel_size: int, kind: str) -> SharedAttention:
    """Returns one of `SUBSTITUTES` for a layer's attention."""
    if kind == "truncated":
        return truncated(attention, kernel_size)
    return convolved(shift_weights(attention, kernel_size), (attention.shape[1], attention.shape[2]), kind)


def replace_first(model: AttentionClassifier, attention: Sequence[SharedAttention]) -> AttentionClassifier:
    """Returns a copy of a network whose first layers attend as given, one array per layer."""
    model = nnx.clone(model)
    for block, given in zip(model.blocks, attention, strict=False):
        # A block calls it as it calls self-attention.
        block.attention = GivenAttention(block.attention, given)  # pyright: ignore[reportAttributeAccessIssue]
    return model


def accuracy(
    model: nnx.Module, images: Float[Array, "b H W C"], labels: Int[np.ndarray, " b"], batch_size: int = 100
) -> float:
    """Returns the share of normalised pictures whose most probable class is right."""
    skeleton, parameters, statistics = split(model)
    right = [
        np.asarray(_predictions(skeleton, parameters, statistics, images[start : start + batch_size]))
        == labels[start : start + batch_size]
        for start in range(0, len(labels), batch_size)
    ]
    return float(np.concatenate(right).mean())


@functools.partial(jax.jit, static_argnums=0)
def _predictions(
    skeleton: Skeleton, parameters: Arrays, statistics: Arrays, images: Float[Array, "b H W C"]
) -> Int[Array, " b"]:
    return join(skeleton, parameters, statistics)(images)[0].argmax(axis=-1)


def layer_inputs(model: AttentionClassifier, images: Float[Array, "b H W C"]) -> list[Activations]:
    """Returns the activations that enter every attention layer, of normalised pictures."""
    skeleton, *arrays = split(model)
    inputs = jax.jit(lambda arrays, x: [layer["input"] for layer in join(skeleton, *arrays)(x)[1]["layers"]])
    return inputs(arrays, images)


def measure(
    model: AttentionClassifier,
    attention: Sequence[SharedAttention],
    kernel_size: int,
    images: Float[Array, "b H W C"],
    labels: Int[np.ndarray, " b"],
    *,
    error_images: int = 100,
) -> Result:
    """Replaces a network's layers, from the first on, and returns what changes.

    Args:
      model: the network.
      attention: of every layer, or its mean over pictures where it depends on content.
      kernel_size: K.
      images: normalised; the first `error_images` serve for the output error.
      labels: their classes.
      error_images: how many.
    """
    accuracies = {}
    for kind in SUBSTITUTES:
        given = [substitute(layer, kernel_size, kind) for layer in attention]
        accuracies[kind] = np.array(
            [accuracy(replace_first(model, given[: n + 1]), images, labels) for n in range(len(given))]
        )
    errors = []
    inputs = layer_inputs(model, images[:error_images])
    for block, x, layer in zip(model.blocks, inputs, attention, strict=True):
        convolution = GivenAttention(block.attention, substitute(layer, kernel_size, "zeros"))
        bias = block.attention.output.bias
        assert bias is not None
        errors.append(output_error(block.attention(x), convolution(x), bias[...], kernel_size))
    inside = [1 - np.asarray(mass_outside(jnp.asarray(layer), kernel_size)) for layer in attention]
    return Result(kernel_size, accuracies, errors, inside)
