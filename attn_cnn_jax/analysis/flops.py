"""Counts parameters and floating-point operations (FLOPs) of networks, per image; a multiply-add is two FLOPs.

The paper counts linear maps and convolutions: twice the pixels times the sizes of all kernels. The full count adds
the head averages and the scores. Elementwise work (softmax, norms, GELU; about a percent) is in neither, nor is what
an implementation saves: attention counts as dense, and a convolution multiplies its padding too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import abstract_model, grid, heads_by_layer, parameter_size
from attn_cnn_jax.models.variables import join, split

UNITS = ("", "k", "M", "B", "T")


class Flops(NamedTuple):
    """FLOPs per image.

    Attributes:
      linear: of linear maps and convolutions, all that the paper counts.
      full: these, head averages, content scores, and position scores as far as they are matrix products.
      merged: `full` as GPUs and TPUs are given it, maps to queries and keys merged where they are (`merged_content`).
    """

    linear: int
    full: int
    merged: int


def count_parameters(model: ConfigDict) -> int:
    """Returns the number of trainable values of the network that `config.model` describes; allocates none of them."""
    return parameter_size(model)[0]


def count_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per image of the network that `config.model` describes."""
    return resnet_flops(model) if model.name == "resnet" else attention_network_flops(model)


def attention_network_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per image of an attention network; layers with as many heads count the same."""
    pixels, counts = math.prod(grid(model)), Counter(heads_by_layer(model))
    networks: dict[int, Any] = {
        heads: abstract_model(ConfigDict(model.to_dict() | {"num_layers": 1, "num_heads": heads})) for heads in counts
    }
    first = next(iter(networks.values()))
    linear, more, saved = pixels * kernel_size(first.embedding) + kernel_size(first.classifier), 0, 0
    for heads, network in networks.items():
        block, count = network.blocks[0], counts[heads]
        layer = block.attention
        maps = pixels * sum(
            map(kernel_size, (layer.value, layer.output, block.dense, block.intermediate, block.output))
        )
        x = jax.ShapeDtypeStruct((1, *grid(model), model.hidden_size), layer.output.dtype)
        projections, scores = (
            sum(product.multiply_adds for product in products(layer, function, x))
            for function in (
                lambda layer, x: [reader.project(x) for reader in layer.readers],  # to queries and keys
                lambda layer, x: (layer.content_terms(x), layer.position_terms(*x.shape[1:3])),  # and all that follows
            )
        )
        linear += count * (maps + projections)
        more += count * (scores - projections + pixels**2 * layer.output.in_features)
        if (merged := nnx.eval_shape(lambda layer: layer.merged_content(), layer)) is not None:
            channels, size = merged.product.shape[2], layer.readers[0].query.out_features // heads
            saved += count * pixels * heads * (channels * (2 * size - channels) + pixels * (size - channels))
    return Flops(2 * linear, 2 * (linear + more), 2 * (linear + more - saved))


def kernel_size(layer: nnx.Linear | None) -> int:
    """Returns the number of entries of a linear map's kernel; 0 where there is no map."""
    return 0 if layer is None else layer.in_features * layer.out_features


def resnet_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per image of a ResNet: convolutions, padding included, and the linear map.

    Where its layers are attention, every head of a KxK layer averages all pixels of the padded image for each query.
    """
    network: Any = abstract_model(ConfigDict(model.to_dict() | {"layers": "convolution"}))
    x = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.dtype(model.dtype))
    linear, averages = kernel_size(network.classifier), 0
    for product in products(network, lambda model, x: model(x)[0], x):
        if len(product.kernel) < 4:
            continue  # the classifier, of the mean and of every pixel
        linear += product.multiply_adds
        if model.layers == "attention":
            side, _, features, out = product.kernel
            keys = math.prod(size + 2 * (side // 2) for size in product.input[1:3])
            averages += side**2 * math.prod(product.result) // out * keys * features
    return Flops(2 * linear, 2 * (linear + averages), 2 * (linear + averages))


class Product(NamedTuple):
    """A matrix product or convolution in a traced program.

    Attributes:
      input, kernel, result: shapes; of a convolution `(b, H, W, d)`, `(K, K, d, o)` and `(b, H, W, o)`.
      multiply_adds: entries of the result, times the number of terms that each is a sum of.
    """

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    multiply_adds: int


def products(
    module: nnx.Module, function: Callable[[Any, jax.Array], Any], x: jax.ShapeDtypeStruct
) -> Iterator[Product]:
    """Returns the products of `function(module, x)`, those of the same arrays once; nothing is computed."""
    skeleton, *arrays = split(module)
    traced = jax.make_jaxpr(lambda arrays, x: function(join(skeleton, *arrays), x))(arrays, x)
    return products_in(traced.jaxpr)


def products_in(jaxpr: Any) -> Iterator[Product]:
    """Returns the products of a traced program and of the functions that it calls."""
    seen = set()
    for equation in jaxpr.eqns:
        same = equation.primitive, str(equation.params), *map(id, equation.invars)
        if same in seen:
            continue
        seen.add(same)
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            left, right, result = (variable.aval.shape for variable in (*equation.invars, *equation.outvars))
            numbers = equation.params["dimension_numbers"]
            summed = [left[n] for n in numbers[0][0]] if equation.primitive.name == "dot_general" else right[:-1]
            yield Product(left, right, result, math.prod(result) * math.prod(summed))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products_in(inner)


def short(count: int) -> str:
    """Returns a count to three significant digits as the paper writes it: `short(6_176_000_000)` is `6.18B`."""
    rounded = float(f"{count:.2e}")  # before choosing the unit: 999,999 is 1.00M
    power = min(int(math.log10(max(rounded, 1))) // 3, len(UNITS) - 1)
    return f"{rounded / 1000**power:#.3g}".rstrip(".") + UNITS[power]
