"""optax: SGD as the paper runs it (or Adam, or Muon), learning-rate schedules, and what weight decay leaves alone.

Muon makes the momentum of every matrix orthogonal, each head's by itself; a convolution's kernel is one, too. Other
parameters are trained by Adam with Nesterov momentum, as optax has it.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict
from optax.contrib import MuonDimensionNumbers

from attn_cnn_jax.arrays import Arrays, Shape
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.pruning import head_axes, parameters_of_layers
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.models.variables import split

# Shares of a run after which schedule "step" divides the learning rate by ten: the paper's ResNet's epochs of 300.
STEP_SHARES = 80 / 300, 150 / 300, 250 / 300
BIASES = re.compile(r"(\.bias|norm\d*\.scale)$")  # names of biases and of norms' scales; FIRE has another scale
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


def learning_rate(config: ConfigDict, num_epochs: int, steps_per_epoch: int) -> optax.Schedule:
    """Returns the learning rate of every step, from 0: a linear warm-up, then the schedule of `config.optimizer`."""
    total = num_epochs * steps_per_epoch
    warmup = round(config.warmup_fraction * total)
    match config.schedule:
        case "cosine":
            after = optax.cosine_decay_schedule(config.learning_rate, max(1, total - warmup))
        case "step":
            steps = Counter(round(share * total) - warmup for share in STEP_SHARES)  # in few steps some coincide
            scales = {step: 0.1**times for step, times in steps.items()}
            after = optax.piecewise_constant_schedule(config.learning_rate, scales)
        case "linear":
            after = optax.linear_schedule(config.learning_rate, 0.0, max(1, total - warmup))
        case "constant":
            after = optax.constant_schedule(config.learning_rate)

    def schedule(step):
        step = jnp.asarray(step, float)  # an integer would count in float32 even where x64 is on
        rising = config.learning_rate * step / max(1, warmup)
        return jnp.where(step < warmup, rising, after(jnp.maximum(step - warmup, 0)))

    return schedule


def decayed(parameters: Arrays) -> dict[str, bool]:
    """Returns which parameters weight decay applies to: all but those that attention layers and encodings name."""
    spared = {f".attention.{name}" for name in SelfAttention.not_decayed}
    spared |= {f".attention.position.{name}" for kind in REGISTRY.values() for name in kind.not_decayed}
    return {name: not f".{name}".endswith(tuple(spared)) for name in parameters}


def create_optimizer(
    config: ConfigDict,
    schedule: optax.Schedule,
    fixed: Mapping[str, np.ndarray] | None = None,
    *,
    shaped: Mapping[str, Matrices] | None = None,
) -> optax.GradientTransformation:
    """Returns the optimizer of `config.optimizer`, at the learning rates of `schedule`.

    Weight decay of SGD and Adam is added to the gradient, as PyTorch's `SGD` and `Adam` do (not `AdamW`). With Muon it
    is decoupled, as published: `w -= learning rate * decay * w`, whatever the gradient; `shaped` has its `matrices`.

    Before that the gradient is scaled to `config.max_grad_norm` where it is longer; 0 leaves it as it is. Its norm is
    that of what is trained. `fixed` has, by a parameter's name, a boolean array that broadcasts to it, true where it
    must not change; gradients that nothing needs are not computed. Updates of biases and norms' scales are multiplied
    by `config.bias_rate` in the end.
    """
    decay = optax.add_decayed_weights(config.weight_decay, mask=decayed)
    match config.name:
        case "sgd":
            rule = optax.chain(decay, optax.sgd(schedule, momentum=config.momentum))
        case "adam":
            rule = optax.chain(decay, optax.adam(schedule))
        case "muon":
            decoupled = optax.add_decayed_weights(-config.weight_decay, mask=decayed)
            rule = optax.chain(muon(config.momentum, shaped or {}), decoupled, optax.scale_by_schedule(schedule))
    parts = [optax.clip_by_global_norm(config.max_grad_norm), rule] if config.max_grad_norm else [rule]
    if fixed:

        def zeroed(updates: Any, _: Any) -> Any:
            return {name: jnp.where(fixed[name], 0, x) if name in fixed else x for name, x in updates.items()}

        # Before the rule, so that XLA leaves gradients out and they have no norm; after it, for weight decay.
        parts = [optax.stateless(zeroed), *parts, optax.stateless(zeroed)]
    if (factor := config.bias_rate) != 1:  # else the state has the structure that it has in older checkpoints

        def faster(updates: Any, _: Any) -> Any:
            return {name: x * factor if BIASES.search(name) else x for name, x in updates.items()}

        parts.append(optax.stateless(faster))
    whole = optax.chain(*parts)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):  # optax raises Adam's and Muon's rates to an integer step
            return whole.update(updates, state, params)

    return optax.GradientTransformation(whole.init, update)


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
    shapes = {name: Matrices(array.shape, plain) for name, array in blocks.items()}
    for name, array, n, part in parameters_of_layers(model):
        axis, h = head_axes(model.blocks[n].attention).get(part), model.blocks[n].attention.num_heads
        if name in blocks and axis is not None:
            rows, columns = array.shape
            by_rows = Matrices((h, rows // h, columns), MuonDimensionNumbers(1, 2))
            by_columns = Matrices((rows, h, columns // h), MuonDimensionNumbers(0, 2))
            shapes[name] = by_columns if axis else by_rows
    return shapes


def muon(momentum: float, shaped: Mapping[str, Matrices]) -> optax.GradientTransformation:
    """Returns Muon for matrices, as `matrices` gives them, and Adam for all other parameters; both at the rate 1.

    Both have Nesterov momentum, `momentum` that of the matrices.
    """

    def numbers(parameters: Any) -> Any:
        return {name: shaped[name].axes if name in shaped else None for name in parameters}

    rule = optax.contrib.muon(1.0, beta=momentum, consistent_rms=RMS, muon_weight_dimension_numbers=numbers)

    def by_head(arrays: Any) -> Any:
        return {name: array.reshape(shaped[name].shape) if name in shaped else array for name, array in arrays.items()}

    def init(params: Any) -> Any:
        return rule.init(by_head(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        moved: Any
        moved, state = rule.update(by_head(updates), state, params and by_head(params))
        return {name: array.reshape(updates[name].shape) for name, array in moved.items()}, state

    return optax.GradientTransformation(init, update)
