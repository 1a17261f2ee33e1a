"""The moving average of parameters: what a run evaluates, saves and loads, while gradients are taken elsewhere.

The optimizer moves an iterate of its own, and the parameters of the network follow it as its average:

    average_t = d_t average_(t-1) + (1 - d_t) iterate_t,    d_t = min(decay, (1 + t) / (10 + t)),    t = 0, 1, ...

so that the first averages forget the random start. Checkpoints, figures and exports have the average without knowing
of it; the iterate lies in the state of the optimizer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from attn_cnn_jax.arrays import Arrays


class Averaged(NamedTuple):
    """State of `averaged`."""

    count: jax.Array  # scalar int32, number of finished steps
    iterate: Arrays  # where the next gradient is taken
    inner: Any  # of the optimizer that moves it


def averaged(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Returns an optimizer whose parameters are the moving average of those that `optimizer` would reach.

    It takes gradients at `iterate(state, parameters)`.

    Args:
      optimizer: what moves the iterate.
      decay: share of the old average in the new one, 0 <= decay < 1.
    """

    def init(params):
        # A copy: a step gives away the memory of parameters and of the iterate.
        return Averaged(jnp.int32(0), jax.tree.map(jnp.copy, params), optimizer.init(params))

    def update(updates, state, params=None):
        updates, inner = optimizer.update(updates, state.inner, state.iterate)
        moved: Any = optax.apply_updates(state.iterate, updates)
        count = state.count.astype(jnp.float32)
        share = 1 - jnp.minimum(decay, (1 + count) / (10 + count))
        # As a step towards the iterate: a parameter that does not move stays as it is, to the bit.
        towards = jax.tree.map(lambda average, at: share.astype(at.dtype) * (at - average), params, moved)
        return towards, Averaged(state.count + 1, moved, inner)

    return optax.GradientTransformation(init, update)


def iterate(state: optax.OptState, parameters: Arrays) -> Arrays:
    """Returns where the next gradient is taken: of an averaged optimizer its iterate, else the parameters."""
    return state.iterate if isinstance(state, Averaged) else parameters
