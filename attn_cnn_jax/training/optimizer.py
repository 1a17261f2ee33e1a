"""optax: SGD as the paper runs it (or Adam), learning-rate schedules, and what weight decay leaves alone."""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from attn_cnn_jax.models.variables import Arrays

# Weight decay would pull heads towards the query pixel and towards uniform attention.
NOT_DECAYED = ("centre", "spread")


def learning_rate(config: ConfigDict, num_epochs: int, steps_per_epoch: int) -> optax.Schedule:
    """The learning rate of every step: a linear warm-up from 0, then the schedule (paper.md, section 4).

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
    """Which parameters weight decay applies to: all but the heads' centres and spreads."""
    return {name: name.rpartition(".")[2] not in NOT_DECAYED for name in parameters}


def create_optimizer(config: ConfigDict, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizer of `config.optimizer`; weight decay is added to the gradient before momentum."""
    decay = optax.add_decayed_weights(config.weight_decay, mask=decayed)
    if config.name == "adam":
        return optax.chain(decay, optax.adam(schedule))
    return optax.chain(decay, optax.sgd(schedule, momentum=config.momentum))


def all_finite(arrays: Arrays) -> jnp.ndarray:
    """Whether no array holds a NaN or an infinity: a boolean scalar."""
    return jnp.all(jnp.stack([jnp.isfinite(array).all() for array in arrays.values()]))
