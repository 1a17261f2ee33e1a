"""Muon: the momentum of every matrix is made orthogonal, each head's by itself; a convolution's kernel is one, too.

Other parameters are trained by Adam with Nesterov momentum, as optax has it.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx
from optax.contrib import MuonDimensionNumbers

from attn_cnn_jax.arrays import Shape
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.pruning import head_axes
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.models.variables import split

RMS = 0.2  # root mean square of an orthogonal update, near that of Adam's: one learning rate serves both


class Matrices(NamedTuple):
    """How a parameter is a matrix, or one for every head.

    Attributes:
      shape: `(d, o)`, of a convolution `(k k d, o)`; `(h, c, o)` where axis 0 counts heads and their channels,
        `(d, h, c)` where axis 1 does.
      axes: of `shape`, those of a matrix: input, output.
    """

    shape: Shape
    axes: MuonDimensionNumbers


def matrices(model: nnx.Module) -> dict[str, Matrices]:
    """Returns the matrices inside the blocks of a network, by the parameter's name.

    Embedding or stem and classifier are left to Adam, as usual; so are attention layers in a ResNet.
    """
    blocks = {name: array for name, array in split(model)[1].items() if re.fullmatch(r"blocks\.\d+\..+\.kernel", name)}
    plain = MuonDimensionNumbers(0, 1)
    if isinstance(model, ResNet):  # matrices from all pixels and channels of a patch
        kernels = {name: array for name, array in blocks.items() if array.ndim == 4}
        return {name: Matrices((-1, kernel.shape[-1]), plain) for name, kernel in kernels.items()}
    if not isinstance(model, AttentionClassifier):
        return {}
    found = {name: Matrices(array.shape, plain) for name, array in blocks.items()}
    for n, block in enumerate(model.blocks):
        h = block.attention.num_heads
        for short, axis in head_axes(block.attention).items():
            name = f"blocks.{n}.attention.{short}"
            if name in blocks:
                rows, columns = blocks[name].shape
                by_rows = Matrices((h, rows // h, columns), MuonDimensionNumbers(1, 2))
                by_columns = Matrices((rows, h, columns // h), MuonDimensionNumbers(0, 2))
                found[name] = by_columns if axis else by_rows
    return found


def muon(schedule: optax.Schedule, momentum: float, shaped: Mapping[str, Matrices]) -> optax.GradientTransformation:
    """Returns Muon for some matrices and Adam for all other parameters, at one learning rate.

    Both have Nesterov momentum.

    Args:
      schedule: learning rate of every step.
      momentum: of the matrices, 0 to 1.
      shaped: which parameters are matrices, as `matrices` gives them.
    """

    def numbers(parameters: Any) -> Any:
        return {name: shaped[name].axes if name in shaped else None for name in parameters}

    rule = optax.contrib.muon(schedule, beta=momentum, consistent_rms=RMS, muon_weight_dimension_numbers=numbers)

    def by_head(arrays: Any) -> Any:
        return {name: array.reshape(shaped[name].shape) if name in shaped else array for name, array in arrays.items()}

    def init(params: Any) -> Any:
        return rule.init(by_head(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of an integer count
            moved: Any
            moved, state = rule.update(by_head(updates), state, params and by_head(params))
        return {name: array.reshape(updates[name].shape) for name, array in moved.items()}, state

    return optax.GradientTransformation(init, update)
