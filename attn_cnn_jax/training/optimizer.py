"""optax: SGD as the paper runs it (or Adam, or Muon), learning-rate schedules, and what weight decay leaves alone."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.training.muon import Matrices, muon

STEP_FACTOR = 0.1  # of the learning rate, at every boundary of schedule "step"


def learning_rate(config: ConfigDict, num_epochs: int, steps_per_epoch: int) -> optax.Schedule:
    """Returns the learning rate of every step: a linear warm-up from 0, then the schedule.

    Args:
      config: `config.optimizer`.
      num_epochs: length of the run.
      steps_per_epoch: optimizer steps in an epoch.

    Returns:
      A function of the step, from 0.
    """
    total = num_epochs * steps_per_epoch
    warmup = round(config.warmup_fraction * total)
    match config.schedule:
        case "cosine":
            after = optax.cosine_decay_schedule(config.learning_rate, max(1, total - warmup))
        case "step":
            steps = {epoch * steps_per_epoch - warmup: STEP_FACTOR for epoch in config.boundaries}
            after = optax.piecewise_constant_schedule(config.learning_rate, steps)
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
    """Returns the optimizer of `config.optimizer`.

    Weight decay of SGD and Adam is added to the gradient, as PyTorch's `SGD` and `Adam` do (not `AdamW`). With Muon it
    is decoupled, as published: `w -= learning rate * decay * w`, whatever the gradient.

    Before that the gradient is scaled to `config.max_grad_norm` where it is longer; 0 leaves it as it is. Its norm is
    that of what is trained: gradients of parameters and entries that must not change do not count.

    Args:
      config: `config.optimizer`.
      schedule: the learning rate of every step, see `learning_rate`.
      fixed: by a parameter's name, a boolean array that broadcasts to it, true where it must not change; gradients
        that nothing needs are not computed.
      shaped: for "muon", the network's matrices, see muon.py.
    """
    decay = optax.add_decayed_weights(config.weight_decay, mask=decayed)
    match config.name:
        case "sgd":
            rule = optax.chain(decay, optax.sgd(schedule, momentum=config.momentum))
        case "adam":
            rule = optax.chain(decay, optax.adam(schedule))
        case "muon":
            rule = muon(schedule, config.momentum, shaped or {})
            if config.weight_decay:
                rule = added(rule, optax.chain(decay, optax.scale_by_learning_rate(schedule)))
    parts = [optax.clip_by_global_norm(config.max_grad_norm), rule] if config.max_grad_norm else [rule]
    if fixed:

        def zeroed(updates: Any, _: Any) -> Any:
            return {name: jnp.where(fixed[name], 0, x) if name in fixed else x for name, x in updates.items()}

        # Before the rule, so that XLA leaves gradients out and they have no norm; after it, for weight decay.
        parts = [optax.stateless(zeroed), *parts, optax.stateless(zeroed)]
    return optax.chain(*parts)


def added(rule: optax.GradientTransformation, decay: optax.GradientTransformation) -> optax.GradientTransformation:
    """Adds to the updates of `rule` what `decay` makes of a gradient of zero."""

    def init(params):
        return rule.init(params), decay.init(params)

    def update(updates, state, params=None):
        zeros = jax.tree.map(jnp.zeros_like, updates)
        moved, of_rule = rule.update(updates, state[0], params)
        towards_zero, of_decay = decay.update(zeros, state[1], params)
        return jax.tree.map(jnp.add, moved, towards_zero), (of_rule, of_decay)

    return optax.GradientTransformation(init, update)


def all_finite(arrays: Arrays) -> jnp.ndarray:
    """Returns whether no array holds a NaN or an infinity: a boolean scalar."""
    return jnp.all(jnp.stack([jnp.isfinite(array).all() for array in arrays.values()]))
