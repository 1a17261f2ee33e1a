"""optax: SGD as the paper runs it (or Adam, or Muon), learning-rate schedules, and what weight decay leaves alone."""

from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Arrays
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.training.averaging import averaged
from attn_cnn_jax.training.muon import Matrices, muon


def learning_rate(config: ConfigDict, num_epochs: int, steps_per_epoch: int) -> optax.Schedule:
    """Returns the learning rate of every step: a linear warm-up from 0, then the schedule.

    Args:
      config: `config.optimizer`. `schedule_every="epoch"` holds each epoch at the rate of its first step.
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
            steps = {epoch * steps_per_epoch - warmup: config.decay for epoch in config.boundaries}
            after = optax.piecewise_constant_schedule(config.learning_rate, steps)
        case "constant":
            after = optax.constant_schedule(config.learning_rate)

    def schedule(step):
        if config.schedule_every == "epoch":
            step = step // steps_per_epoch * steps_per_epoch
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
    frozen: Collection[str] = (),
    factors: Mapping[str, Any] | None = None,
    shaped: Mapping[str, Matrices] | None = None,
) -> optax.GradientTransformation:
    """Returns the optimizer of `config.optimizer`; weight decay is added to the gradient before momentum.

    Before that the gradient is scaled to `config.max_grad_norm` where it is longer; 0 leaves it as it is. Its norm is
    that of what is trained: gradients of parameters and entries that must not change do not count.

    With `config.average_decay` the parameters are a moving average, see averaging.py.

    Args:
      config: `config.optimizer`.
      schedule: the learning rate of every step, see `learning_rate`.
      fixed: by a parameter's name, a boolean array that broadcasts to it, true where it must not change.
      frozen: names of parameters that must not change at all; their gradients are not computed.
      factors: of the learning rate, by a parameter's name, a number or an array that broadcasts to it; 1 for those
        without.
      shaped: for "muon", the network's matrices, see muon.py.
    """
    decay = optax.add_decayed_weights(config.weight_decay, mask=decayed)
    match config.name:
        case "sgd":
            rule = optax.sgd(schedule, momentum=config.momentum)
        case "adam":
            rule = optax.adam(schedule)
        case "muon":
            rule = muon(schedule, config.momentum, shaped or {})
    clip = [clipped(config.max_grad_norm, fixed or {})] if config.max_grad_norm else []
    parts = [*clip, decay, rule]
    if factors:
        parts.append(scaled(factors))
    if fixed:
        parts.append(hold(fixed))
    if frozen:
        held = hold({name: np.array(True) for name in frozen})
        # Before the rule, so that XLA leaves the gradients out; after it, for weight decay.
        parts = [held, *parts, held]
    optimizer = optax.chain(*parts)
    return averaged(optimizer, config.average_decay) if config.average_decay else optimizer


def clipped(longest: float, fixed: Mapping[str, np.ndarray]) -> optax.GradientTransformation:
    """Scales gradients of what is not `fixed` to a norm of `longest`, of all parameters together, if it is longer."""
    clip = optax.clip_by_global_norm(longest)

    def shorten(updates, parameters):
        return clip.update(zeroed(updates, fixed), optax.EmptyState())[0]

    return optax.stateless(shorten)


def scaled(factors: Mapping[str, Any]) -> optax.GradientTransformation:
    """Multiplies updates by a factor per parameter, or per entry of it."""

    def multiply(updates, parameters):
        return {name: update * factors[name] if name in factors else update for name, update in updates.items()}

    return optax.stateless(multiply)


def hold(fixed: Mapping[str, np.ndarray]) -> optax.GradientTransformation:
    """Zeroes updates where `fixed` says so: after momentum and weight decay, so that nothing moves there."""
    return optax.stateless(lambda updates, parameters: zeroed(updates, fixed))


def zeroed(updates: Any, fixed: Mapping[str, np.ndarray]) -> Arrays:
    """Returns updates with zeros where `fixed` says so."""
    return {name: jnp.where(fixed[name], 0, update) if name in fixed else update for name, update in updates.items()}


def all_finite(arrays: Arrays) -> jnp.ndarray:
    """Returns whether no array holds a NaN or an infinity: a boolean scalar."""
    return jnp.all(jnp.stack([jnp.isfinite(array).all() for array in arrays.values()]))
