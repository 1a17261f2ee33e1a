"""Which network a PyTorch checkpoint of the authors' release holds, from the names and shapes of its arrays."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax import errors
from attn_cnn_jax.config import attention_config, resnet_config, validate
from attn_cnn_jax.data.builders import SPECS, Spec
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.resnet import BLOCKS, DEEPEST_WITHOUT_BOTTLENECKS

Shapes = Mapping[str, tuple[int, ...]]

MOST_NAMES = 8  # that one line of a message lists


def network_config(shapes: Shapes) -> ConfigDict:
    """Returns the configuration of the network with these arrays; what arrays don't tell has its default.

    Args:
      shapes: by the release's names.

    Raises:
      UserError: for another kind of network, or one that no configuration here describes.
    """
    config = resnet(shapes) if "linear.weight" in shapes else attention(shapes)
    model = config.model
    spec = find_spec(model.image_shape[2], model.num_classes)
    config.dataset.name = spec.name
    if model.image_shape[0] == 0:  # a network that takes pictures of any size
        model.image_shape = spec.image_shape
    validate(config)
    return config


def attention(shapes: Shapes) -> ConfigDict:
    """Returns the configuration of an attention network; its picture size is 0 where no table tells the size."""
    # A longer number is none of a layer: its array counts among the unknown ones.
    layers = {int(match[1]) for name in shapes if (match := re.match(r"encoder\.layer\.([0-9]{1,9})\.", name))}
    here = "encoder.layer.0.attention.self"
    require(shapes, "features_upscale.weight", "encoder.layer.0.intermediate.dense.weight", "classifier.weight")
    hidden_size, features = matrix(shapes, "features_upscale.weight")
    channels, downsample = pixels(features)
    num_layers = 1 + max(layers)
    if len(layers) < num_layers:
        raise UserError(
            f"arrays of {len(layers)} layers, the last of which is number {num_layers - 1:,}: allowed is no gap"
        )
    values: dict[str, Any] = {
        "num_classes": matrix(shapes, "classifier.weight")[0],
        "hidden_size": hidden_size,
        "intermediate_size": matrix(shapes, "encoder.layer.0.intermediate.dense.weight")[0],
        "num_layers": num_layers,
        "downsample": downsample,
    }
    first = {name.removeprefix(f"{here}."): shape for name, shape in shapes.items() if name.startswith(f"{here}.")}
    name = next((name for name, kind in REGISTRY.items() if kind.in_release(first)), None)
    if name is None:
        known = sorted(name for name, kind in REGISTRY.items() if kind.release)
        raise UserError(
            f"not a network of the authors' release: {here} lacks arrays of an encoding\n"
            f"allowed are the encodings {', '.join(known)}"
        )
    encoding = REGISTRY[name]
    values |= {"encoding": name, "content": encoding.release_content and "query.weight" in first}
    for table in (array for ours, array in encoding.release.items() if ours.startswith("tables.")):
        if (size := matrix(shapes, f"{here}.{table}")[1]) != hidden_size:
            values["position_size"] = size
    rows, columns = encoding.grid_in_release(first) or (0, 0)
    height, width = rows * downsample, columns * downsample
    heads_of = next(array for ours, array in encoding.release.items() if encoding.head_axis.get(ours) == 0)
    counts = [f"encoder.layer.{n}.attention.self.{heads_of}" for n in range(num_layers)]
    require(shapes, *counts)
    heads = tuple(matrix(shapes, name)[0] for name in counts)
    if 0 in heads:
        raise UserError(f"layer {heads.index(0) + 1} has no heads: allowed is at least one in every layer")
    values["num_heads"] = heads[0] if len(set(heads)) == 1 else heads
    return attention_config(image_shape=(height, width, channels), **values)


def resnet(shapes: Shapes) -> ConfigDict:
    """Returns the configuration of a ResNet; the picture size is 0, any will do."""
    stages = [len({name.split(".")[1] for name in shapes if name.startswith(f"layer{n}.")}) for n in range(1, 5)]
    bottlenecks = any(name.endswith(".conv3.weight") for name in shapes)
    depths: dict[tuple[int, ...], int] = {
        blocks: depth for depth, blocks in BLOCKS.items() if (depth > DEEPEST_WITHOUT_BOTTLENECKS) == bottlenecks
    }
    if tuple(stages) not in depths:
        known = ", ".join(f"{depth} ({'-'.join(map(str, blocks))})" for blocks, depth in sorted(depths.items()))
        raise UserError(
            f"a ResNet with {'-'.join(map(str, stages))} {'bottlenecks' if bottlenecks else 'blocks'} in its stages: "
            f"allowed are the depths {known}"
        )
    require(shapes, "conv1.weight")
    width, image_channels, *_ = matrix(shapes, "conv1.weight", 4)
    return resnet_config(
        depth=depths[tuple(stages)],
        width=width,
        num_classes=matrix(shapes, "linear.weight")[0],
        image_shape=(0, 0, image_channels),
    )


def matrix(shapes: Shapes, name: str, ndim: int = 2) -> tuple[int, ...]:
    """Returns the shape of an array that must have two axes (or `ndim`)."""
    if len(shapes[name]) != ndim:
        raise UserError(f"{name} has the shape {shapes[name]}: allowed are {ndim} axes")
    return shapes[name]


def pixels(features: int) -> tuple[int, int]:
    """Returns channels of a pixel and the side of the squares that become one: `12 -> (3, 2)`, `4 -> (1, 2)`."""
    for channels in sorted({spec.image_shape[2] for spec in SPECS.values()}):
        side = math.isqrt(features // channels)
        if features > 0 and channels * side**2 == features:
            return channels, side
    raise UserError(f"features_upscale.weight reads {features} numbers per pixel: allowed is n^2 or 3 n^2")


def find_spec(channels: int, num_classes: int) -> Spec:
    """Returns the data set with these channels and classes, or else one whose pictures have these channels."""
    fits = [spec for spec in SPECS.values() if spec.image_shape[2] == channels]
    if not fits:
        raise UserError(f"a network for pictures of {channels} channels: allowed are those of {', '.join(SPECS)}")
    return next((spec for spec in fits if spec.num_classes == num_classes), fits[0])


def require(shapes: Shapes, *names: str) -> None:
    """Raises UserError that lists the names that are not there."""
    if missing := [name for name in names if name not in shapes]:
        found = f"its {len(shapes)} arrays are {listed(shapes)}" if shapes else "it has no arrays"
        raise UserError(f"not a network of the authors' release: missing {listed(missing)}\n{found}")


def listed(names: Iterable[str]) -> str:
    """Returns the first names, each on one line and not long, and how many more there are."""
    return errors.listed([shortened(name) for name in names], MOST_NAMES)
