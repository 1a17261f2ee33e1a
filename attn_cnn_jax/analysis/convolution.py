"""Measures how convolutional a network is: its attention layers replaced by their KxK convolutions.

Weights and substitutes are those of theorem/to_convolution.py. Where attention depends on content, its mean over test
images takes its place.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.figure import Figure

from attn_cnn_jax import compiling
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.analysis.test_images import first_images, mean_attention
from attn_cnn_jax.arrays import Activations, AnyArray, SharedAttention
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.attention.cpu import dense
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem import to_convolution

TEST_IMAGES, ERROR_IMAGES = 1000, 100
SUBSTITUTES = {  # of a layer, in words
    "zeros": "zeros beyond the border",
    "edge": "edge pixels repeated",
    "truncated": "own attention, truncated",
}


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


def substitute(attention: SharedAttention, kernel_size: int, kind: str) -> SharedAttention:
    """Returns one of `SUBSTITUTES` for a layer's attention."""
    if kind == "truncated":
        return to_convolution.truncated(attention, kernel_size)
    weights = to_convolution.shift_weights(attention, kernel_size)
    return to_convolution.convolved(weights, (attention.shape[1], attention.shape[2]), kind)


def replace_first(model: AttentionClassifier, attention: Sequence[Float[AnyArray, "_ i j k l"]]) -> AttentionClassifier:
    """Returns a copy of a network whose first layers attend as given, one array per layer."""
    model = nnx.clone(model)
    for block, given in zip(model.blocks, attention, strict=False):
        # A block calls it as it calls self-attention.
        block.attention = GivenAttention(block.attention, given)  # pyright: ignore[reportAttributeAccessIssue]
    return model


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
    output error. UserError for a network without attention, or data that is not there.
    """
    model = run.attention_network()
    images, labels = labelled or first_images(run, test_images, data_dir, TEST_IMAGES)
    layers = [block.attention for block in model.blocks]
    attention = [jnp.asarray(layer, jnp.float32) for layer in mean_attention(run, num_images, data_dir)]
    skeleton, *arrays = split(model)
    inputs = compiling.jit(lambda arrays, x: [layer["input"] for layer in join(skeleton, *arrays)(x)[1]["layers"]])
    seen, results = inputs(arrays, run.normalised(images[:ERROR_IMAGES])), []

    def accuracy(model: AttentionClassifier) -> float:
        return dataclasses.replace(run, model=model).evaluate(images, labels).accuracy

    for size in kernel_sizes:
        given = {kind: [substitute(layer, size, kind) for layer in attention] for kind in SUBSTITUTES}
        accuracies = {
            kind: [accuracy(replace_first(model, layers[: n + 1])) for n in range(len(layers))]
            for kind, layers in given.items()
        }
        errors = [
            to_convolution.output_error(layer(x), GivenAttention(layer, kernel)(x), layer.bias.ravel(), size)
            for layer, x, kernel in zip(layers, seen, given["zeros"], strict=True)
        ]
        inside = [1 - np.asarray(to_convolution.mass_outside(layer, size)) for layer in attention]
        results.append(Result(size, {kind: np.array(of) for kind, of in accuracies.items()}, errors, inside))
    return accuracy(model), results


def draw(original: float, results: list[Result]) -> Figure:
    """Returns four panels over K: accuracy with all and with the first n layers replaced, error, mass inside."""
    kernel_sizes = [r.kernel_size for r in results]
    line = {"marker": "o", "markersize": 2.5, "linewidth": 1}
    with style.styled():
        figure = style.create_figure(style.PAGE, 4.2)
        whole, first, error, inside = figure.subplots(2, 2).flat
        for n, (kind, label) in enumerate(SUBSTITUTES.items()):
            values = [100 * r.accuracy[kind][-1] for r in results]
            whole.plot(kernel_sizes, values, **line, color=style.look(n).colour, label=label, gid=kind)
        for axes in (whole, first):
            axes.axhline(100 * original, color="0.4", linestyle="--", linewidth=0.8, label="the network itself")
        for n, colour in enumerate(style.layer_colours(len(results[0].error))):
            look, label = line | {"color": colour}, f"layer {n + 1}"
            values = [100 * r.accuracy["zeros"][n] for r in results]
            first.plot(kernel_sizes, values, **look, label="layer 1" if n == 0 else f"layers 1 to {n + 1}")
            error.plot(kernel_sizes, [r.error[n].everywhere for r in results], **look, linestyle="--")
            error.plot(kernel_sizes, [r.error[n].interior for r in results], **look, label=label)
            inside.plot(kernel_sizes, [100 * r.mass_inside[n].mean() for r in results], **look, label=label)
        whole.set(title="all layers replaced by KxK convolutions", ylabel="test accuracy (%)")
        first.set(title="first layers replaced, zeros beyond the border", ylabel="test accuracy (%)")
        error.set(title="output error: all pixels dashed, interior solid", ylabel="relative error")
        inside.set(title="attention inside the kernel, mean over heads", ylabel="attention (%)")
        for axes in (whole, first, error, inside):
            axes.set(xlabel="kernel size K (pixels)", xticks=kernel_sizes)
            axes.set_ylim(bottom=0)
            style.decorate(axes)
            axes.legend(frameon=False)
    return figure
