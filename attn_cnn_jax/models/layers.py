"""Small pieces that every network here is built from: linear maps as PyTorch starts them, dropout."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from attn_cnn_jax.models.attention.scores import at_least_float32


def uniform(fan_in: int) -> nnx.Initializer:
    """PyTorch's default for linear maps and convolutions: uniform in `+-1/sqrt(fan_in)`."""
    bound = 1 / math.sqrt(fan_in)

    def init(key, shape, dtype, out_sharding=None):
        del out_sharding
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def of_flat(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """A map of the last axis, of pictures' pixels one below the other: `(..., d) -> (..., o)`.

    The same as `function(x)`, but of more than two axes XLA makes the gradient of a weight from a transposed copy.
    """
    result = function(x.reshape(-1, x.shape[-1]))
    return result.reshape(*x.shape[:-1], result.shape[-1])


class Linear(nnx.Linear):
    """Flax's, of flat pixels."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """`(..., in_features) -> (..., out_features)`."""
        return of_flat(super().__call__, x)


def linear(in_features: int, out_features: int, *, dtype: jnp.dtype, rngs: nnx.Rngs, use_bias: bool = True) -> Linear:
    """A linear map whose weight and bias start uniform in `+-1/sqrt(in_features)`, computed in `dtype`."""
    return Linear(
        in_features,
        out_features,
        use_bias=use_bias,
        dtype=dtype,
        param_dtype=at_least_float32(dtype),
        kernel_init=uniform(in_features),
        bias_init=uniform(in_features),
        rngs=rngs,
    )


def dropout(key: jax.Array | None, x: jax.Array, rate: float) -> jax.Array:
    """Zeroes entries with probability `rate` and scales the others to keep the mean.

    The rate is rounded to a multiple of 2^-16: sixteen random bits an entry are enough for a mask and
    cost half of what 32 cost.

    Args:
      key: random key, or None in evaluation, which leaves `x` as it is.
      x: any shape; one independent draw an entry.
      rate: in `[0, 1)`.
    """
    threshold = round(rate * 2**16)
    if key is None or threshold == 0:
        return x
    keep = random_uint16(key, x.shape) >= jnp.uint16(threshold)
    return jnp.where(keep, x * jnp.asarray(2**16 / (2**16 - threshold), x.dtype), jnp.zeros((), x.dtype))


def random_uint16(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform 16-bit integers, two from every 32 random bits."""
    *outer, last = shape
    pairs = jax.random.bits(key, (*outer, (last + 1) // 2), jnp.uint32)
    return jax.lax.bitcast_convert_type(pairs, jnp.uint16).reshape(*outer, -1)[..., :last]
