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

from attn_cnn_jax.config.network import abstract_model, grid, heads_by_layer, parameter_size, with_heads
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.variables import join, split

UNITS = ("", "k", "M", "B", "T")


class Flops(NamedTuple):
    """FLOPs per image.

    Attributes:
      linear: of linear maps and convolutions, all that the paper counts.
      full: these, head averages, content scores, and position scores as far as they are matrix products.
    """

    linear: int
    full: int


def count_parameters(model: ConfigDict) -> int:
    """Returns the number of trainable values of the network that `config.model` describes; allocates none of them."""
    return parameter_size(model)[0]


def count_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per image of the network that `config.model` describes."""
    return resnet_flops(model) if model.name == "resnet" else attention_network_flops(model)


def attention_network_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per image of an attention network; layers with as many heads count the same."""
    pixels = math.prod(grid(model))
    network: Any = abstract_model(with_heads(model, [1]))
    linear, more = pixels * kernel_size(network.embedding) + kernel_size(network.classifier), 0
    for heads, count in Counter(heads_by_layer(model)).items():
        block = abstract_model(with_heads(model, [heads])).blocks[0]
        maps = (block.attention.value, block.attention.output, block.dense, block.intermediate, block.output)
        projections, scores = score_multiply_adds(block.attention, (1, *grid(model), model.hidden_size))
        linear += count * (pixels * sum(map(kernel_size, maps)) + projections)
        more += count * (scores + pixels**2 * block.attention.output.in_features)
    return Flops(2 * linear, 2 * (linear + more))


def kernel_size(layer: nnx.Linear | None) -> int:
    """Returns the number of entries of a linear map's kernel; 0 where there is no map."""
    return 0 if layer is None else layer.in_features * layer.out_features


def score_multiply_adds(layer: SelfAttention, shape: tuple[int, int, int, int]) -> tuple[int, int]:
    """Returns the multiply-adds of the maps to queries and keys, and of the scores, of one image.

    Args:
      layer: with shapes in the place of arrays.
      shape: `(1, H, W, d)` of its input.
    """
    x = jax.ShapeDtypeStruct(shape, layer.output.dtype)
    maps = multiply_adds(layer, lambda layer, x: [reader.project(x) for reader in layer.readers], x)
    scores = multiply_adds(layer, lambda layer, x: (layer.content_terms(x), layer.position_terms(*shape[1:3])), x)
    return maps, scores - maps


def multiply_adds(module: nnx.Module, function: Callable[[Any, jax.Array], Any], x: jax.ShapeDtypeStruct) -> int:
    """Returns the multiply-adds of all matrix products of `function(module, x)`, which is traced and not computed."""
    return sum(math.prod(each.result) * each.summed for each in products(module, function, x))


def resnet_flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs per image of a ResNet: convolutions, padding included, and the linear map.

    Where its layers are attention, every head of a KxK layer averages all pixels of the padded image for each query.
    """
    network: Any = abstract_model(ConfigDict(model.to_dict() | {"layers": "convolution"}))
    x = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.dtype(model.dtype))
    linear, attention = kernel_size(network.classifier), 0
    for each in products(network, lambda model, x: model(x)[0], x):
        if len(each.kernel) < 4:
            continue  # the classifier
        side, _, features, out = each.kernel
        queries = math.prod(each.result) // out
        linear += queries * math.prod(each.kernel)
        if model.layers == "attention":
            keys = math.prod(size + 2 * (side // 2) for size in each.input[1:3])
            attention += side**2 * queries * keys * features
    return Flops(2 * linear, 2 * (linear + attention))


class Product(NamedTuple):
    """A matrix product or convolution in a traced program.

    Attributes:
      input, kernel, result: shapes; of a convolution `(b, H, W, d)`, `(K, K, d, o)` and `(b, H, W, o)`.
      summed: over how many terms each entry of the result is a sum.
    """

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    summed: int


def products(
    module: nnx.Module, function: Callable[[Any, jax.Array], Any], x: jax.ShapeDtypeStruct
) -> Iterator[Product]:
    """Returns the products of `function(module, x)`, in their order; nothing is computed or allocated."""
    skeleton, *arrays = split(module)
    traced = jax.make_jaxpr(lambda arrays, x: function(join(skeleton, *arrays), x))(arrays, x)
    yield from products_in(traced.jaxpr)


def products_in(jaxpr: Any) -> Iterator[Product]:
    """Returns the products of a traced program and of the functions that it calls; those of the same arrays once."""
    seen = set()
    for equation in jaxpr.eqns:
        same = equation.primitive, str(equation.params), *map(id, equation.invars)
        if same in seen:
            continue
        seen.add(same)
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            left, right = (variable.aval.shape for variable in equation.invars)
            numbers = equation.params["dimension_numbers"]
            summed = [left[n] for n in numbers[0][0]] if equation.primitive.name == "dot_general" else right[:-1]
            yield Product(left, right, equation.outvars[0].aval.shape, math.prod(summed))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products_in(inner)


def short(count: int) -> str:
    """Returns a count to three significant digits as the paper writes it: `short(6_176_000_000)` is `6.18B`."""
    rounded = float(f"{count:.2e}")  # before choosing the unit: 999,999 is 1.00M
    power = min(int(math.log10(max(rounded, 1))) // 3, len(UNITS) - 1)
    return f"{rounded / 1000**power:#.3g}".rstrip(".") + UNITS[power]
