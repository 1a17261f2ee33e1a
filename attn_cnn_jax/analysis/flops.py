"""Counts parameters and floating-point operations (FLOPs) of networks.

One multiply-add is two FLOPs, and a count is per picture. The paper counts the linear maps of attention networks, the
convolutions and the linear map of the ResNet, and no more. The full count adds applying the attention probabilities
to the values, the content scores, and the position scores that are matrix products. Elementwise work (softmax, norms,
GELU; about a percent) is in neither, nor is what an implementation saves: attention counts as dense, and a convolution
multiplies its padding too.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from attn_cnn_jax.config.network import encoding_of, encoding_options, grid, head_size, heads_by_layer, sizes
from attn_cnn_jax.config.size import parameter_size
from attn_cnn_jax.models.encodings.content import content_multiply_adds
from attn_cnn_jax.models.resnet import BLOCKS, DEEPEST_WITHOUT_BOTTLENECKS, EXPANSION, WIDTH, stages

UNITS = ("", "k", "M", "B", "T")


class Flops(NamedTuple):
    """FLOPs per picture.

    Attributes:
      linear: linear maps and convolutions, all that the paper counts.
      attention: probabilities times values, and content scores.
      positions: position scores, as far as they are matrix products.
    """

    linear: int
    attention: int = 0
    positions: int = 0

    @property
    def full(self) -> int:
        return sum(self)


def count_parameters(model: ConfigDict) -> int:
    """Returns the number of trainable values of the network that `config.model` describes; allocates none of them."""
    return parameter_size(model).values


def count_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per picture of the network that `config.model` describes."""
    return resnet_flops(model) if model.name == "resnet" else attention_network_flops(model)


def attention_network_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per picture of an attention network, computed densely."""
    height, width = grid(model)
    pixels, hidden = height * width, model.hidden_size
    layers = [layer_multiply_adds(model, heads) for heads in heads_by_layer(model)]
    linear, attention, positions = (sum(part) for part in zip(*layers, strict=True))
    height, width, channels = model.image_shape
    if model.stem == "resnet":
        linear += height * width * 9 * WIDTH * (channels + 2 * BLOCKS[18][0] * WIDTH)
        channels = WIDTH
    linear += pixels * channels * model.downsample**2 * hidden + hidden * model.num_classes
    return Flops(2 * linear, 2 * attention, 2 * positions)


def layer_multiply_adds(model: ConfigDict, heads: int) -> tuple[int, int, int]:
    """Returns the multiply-adds of one block, in the three parts of `Flops`."""
    height, width = grid(model)
    pixels, hidden, size = height * width, model.hidden_size, head_size(model)
    merged = size >= hidden  # one map W_val W_out per head
    value = heads * (hidden if merged else 2 * size) * hidden
    scores = [encoding_of(model).multiply_adds(sizes(model, heads), encoding_options(model))]
    scores += [content_multiply_adds(grid(model), hidden, size)] if model.content else []
    maps, content, positions = (sum(part) for part in zip(*scores, strict=True))
    linear = pixels * (value + heads * maps + hidden**2 + 2 * hidden * model.intermediate_size)
    averages = pixels**2 * (hidden if merged else size)
    return linear, heads * (averages + content), heads * positions


def resnet_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per picture of a ResNet: convolutions, padding included, and the linear map.

    Where its layers are attention, every head of a KxK layer averages all pixels of the padded picture for each query.
    """
    linear = attention = 0
    for layer in resnet_layers(model):
        queries = math.prod(-(-side // layer.stride) for side in layer.size)
        linear += queries * layer.kernel**2 * layer.features * layer.out
        if model.layers == "attention":
            keys = math.prod(side + 2 * (layer.kernel // 2) for side in layer.size)
            attention += layer.kernel**2 * queries * keys * layer.features
    return Flops(2 * (linear + layer.out * model.num_classes), 2 * attention)


class ConvolutionalLayer(NamedTuple):
    """A convolution of a ResNet: rows and columns that it is given, side of its kernel, stride, channels in and out."""

    size: tuple[int, int]
    kernel: int
    stride: int
    features: int
    out: int


def resnet_layers(model: ConfigDict) -> Iterator[ConvolutionalLayer]:
    """Returns the convolutions of a ResNet from the stem on; the last one has the channels of the classifier."""
    (height, width, features), out = model.image_shape, model.width
    yield ConvolutionalLayer((height, width), 3, 1, features, out)
    features = out
    for stage, (count, channels) in enumerate(stages(model.depth, model.width)):
        for n in range(count):
            stride, size = 2 if stage > 0 and n == 0 else 1, (height, width)
            height, width = -(-height // stride), -(-width // stride)
            deep = model.depth > DEEPEST_WITHOUT_BOTTLENECKS
            out = EXPANSION * channels if deep else channels
            if stride != 1 or features != out:
                yield ConvolutionalLayer(size, 1, stride, features, out)
            if deep:
                yield ConvolutionalLayer(size, 1, 1, features, channels)
                yield ConvolutionalLayer(size, 3, stride, channels, channels)
                yield ConvolutionalLayer((height, width), 1, 1, channels, out)
            else:
                yield ConvolutionalLayer(size, 3, stride, features, channels)
                yield ConvolutionalLayer((height, width), 3, 1, channels, out)
            features = out


def short(count: int) -> str:
    """Returns a count to three significant digits as the paper writes it: `short(6_176_000_000)` is `6.18B`."""
    rounded = float(f"{count:.2e}")  # before choosing the unit: 999,999 is 1.00M
    power = min(int(math.log10(max(rounded, 1))) // 3, len(UNITS) - 1)
    return f"{rounded / 1000**power:#.3g}".rstrip(".") + UNITS[power]
