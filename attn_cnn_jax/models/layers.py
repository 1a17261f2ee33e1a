"""Pieces of every network here: linear maps that start as PyTorch's, dropout, the type of parameters."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.random import threefry2x32_p
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt16


def in_precision(precision: str, function: Callable) -> Callable:
    """Returns the function, to be jitted, with its matrix products in a precision.

    Args:
      precision: "default" leaves it to JAX and its settings; else as `jax.default_matmul_precision` has it.
      function: any; what it calls is traced in this precision too.
    """
    return function if precision == "default" else jax.default_matmul_precision(precision)(function)


@functools.cache
def uniform(fan_in: int) -> nnx.Initializer:
    """Returns PyTorch's initialiser of linear maps and convolutions: uniform in `+-1/sqrt(fan_in)`."""
    bound = 1 / math.sqrt(fan_in)

    def init(key, shape, dtype, out_sharding=None):
        del out_sharding
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def at_least_float32(dtype: DTypeLike) -> jnp.dtype:
    """Returns the type of parameters, scores, softmax and loss where activations are of `dtype`."""
    return max(jnp.dtype(dtype), jnp.dtype(jnp.float32), key=lambda d: d.itemsize)


def flattened(
    function: Callable[[Float[Array, "_ d"]], Float[Array, "_ o"]], x: Float[Array, "*pixels d"]
) -> Float[Array, "*pixels o"]:
    """Returns `function(x)`, a map of the last axis, computed over flattened leading axes.

    Beyond two axes XLA copies a transpose of the activations for the weight gradient.
    """
    result = function(x.reshape(-1, x.shape[-1]))
    return result.reshape(*x.shape[:-1], result.shape[-1])


class Linear(nnx.Linear):
    """`nnx.Linear` over flattened leading axes, where pictures lie first.

    Attributes:
      pixels_first: whether pixels lie before pictures; as those are split over devices, their axis is not flattened
        behind another.
    """

    pixels_first = False

    def __call__(self, x: Float[Array, "*pixels d"]) -> Float[Array, "*pixels o"]:
        return super().__call__(x) if self.pixels_first else flattened(super().__call__, x)


def linear(in_features: int, out_features: int, *, dtype: DTypeLike, rngs: nnx.Rngs, use_bias: bool = True) -> Linear:
    """Returns a linear map whose weight and bias start uniform in `+-1/sqrt(in_features)`, computed in `dtype`."""
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: Float[Array, "*pixels d"], scale: Float[Array, " d"], bias: Float[Array, " d"], epsilon: float
) -> Float[Array, "*pixels d"]:
    """Returns the layer norm over the last axis, as `nnx.LayerNorm`; keeps normalised activations for its gradients.

    On GPUs, which are limited by memory here, its gradients read less than those of autodiff.
    """
    return layer_norm_forward(x, scale, bias, epsilon)[0]


def layer_norm_forward(x, scale, bias, epsilon):
    """Returns `layer_norm`, and what its gradients need."""
    wide = x.astype(at_least_float32(x.dtype))
    centred = wide - wide.mean(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    normalised = centred * factor
    broadcast = (1,) * (x.ndim - 1) + scale.shape
    result = normalised * scale.reshape(broadcast) + bias.reshape(broadcast)
    return result.astype(x.dtype), (normalised.astype(x.dtype), factor, scale)


def layer_norm_backward(epsilon, kept, gradient):
    """Returns the gradients with respect to activations, scale and bias."""
    del epsilon
    normalised, factor, scale = kept
    wide = normalised.astype(scale.dtype)
    gradient_wide = gradient.astype(scale.dtype)
    pixels = tuple(range(gradient.ndim - 1))
    scaled = gradient_wide * scale.reshape((1,) * (gradient.ndim - 1) + scale.shape)
    along = (scaled * wide).mean(axis=-1, keepdims=True)
    of_x = factor * (scaled - scaled.mean(axis=-1, keepdims=True) - wide * along)
    return of_x.astype(gradient.dtype), (gradient_wide * wide).sum(axis=pixels), gradient_wide.sum(axis=pixels)


layer_norm.defvjp(layer_norm_forward, layer_norm_backward)


def dropout(
    key: PRNGKeyArray | None,
    x: Float[Array, "*any"],
    rate: float,
    platform: str | None = None,
    drawn: tuple[int, ...] | None = None,
) -> Float[Array, "*any"]:
    """Zeroes entries with probability `rate` and scales the others to keep the mean.

    The rate is rounded to a multiple of 2^-16: sixteen random bits per entry are enough for a mask and
    cost half of what 32 cost.

    Args:
      key: random key, or None in evaluation, which leaves `x` as it is.
      x: one independent draw per entry.
      rate: from 0 to `1 - 2^-16`.
      platform: what it is compiled for; on TPUs the same numbers are drawn in another form.
      drawn: shape of which `x` is a filled-up form: entries within it get the numbers of an array of that shape, the
        others any. None: that of `x`.
    """
    return masked(x, *dropout_mask(key, x.shape, rate, platform, drawn))


def masked(x: Float[Array, "*any"], keep: Bool[Array, "*any"] | None, factor: float) -> Float[Array, "*any"]:
    """Returns `x` after dropout by a mask of `dropout_mask`."""
    return x if keep is None else jnp.where(keep, x * jnp.asarray(factor, x.dtype), jnp.zeros((), x.dtype))


def dropout_mask(
    key: PRNGKeyArray | None,
    shape: tuple[Any, ...],
    rate: float,
    platform: str | None = None,
    drawn: tuple[int, ...] | None = None,
) -> tuple[Bool[Array, "..."] | None, float]:
    """Returns which entries `dropout` keeps, and what it multiplies them with; None and 1 where it drops nothing.

    A network that is exported for any batch size has a symbol in its shapes.
    """
    threshold = round(rate * 2**16)
    if key is None or threshold == 0:
        return None, 1.0
    return random_uint16(key, shape, platform, drawn) >= jnp.uint16(threshold), 2**16 / (2**16 - threshold)


def random_uint16(
    key: PRNGKeyArray, shape: tuple[int, ...], platform: str | None = None, drawn: tuple[int, ...] | None = None
) -> UInt16[Array, "..."]:
    """Returns uniform 16-bit integers, two from every 32 random bits; the same on every platform.

    Within the shape `drawn` they are those of an array of that shape, see `dropout`.
    """
    filled_up = drawn is not None and drawn != shape
    if (platform == "tpu" or filled_up) and has_own_counts(key, shape):
        return uint16_alone(key, shape, drawn or shape)
    *outer, last = shape
    pairs = jax.random.bits(key, (*outer, (last + 1) // 2), jnp.uint32)
    return jax.lax.bitcast_convert_type(pairs, jnp.uint16).reshape(*outer, -1)[..., :last]


def uint16_alone(key: PRNGKeyArray, shape: tuple[int, ...], drawn: tuple[int, ...]) -> UInt16[Array, "..."]:
    """Returns `random_uint16`: draws the 32 bits of its pair for each entry, and takes its half.

    TPUs compute the bits twice in less time than they interleave the halves of an array: its last axis of two is padded
    to a whole tile.
    """
    *outer, last = shape
    first, second = jax.random.key_data(key)
    entry = jax.lax.broadcasted_iota(jnp.uint32, shape, len(outer))
    count = entry // 2
    stride = (last + 1) // 2
    for axis in reversed(range(len(outer))):
        count += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride *= drawn[axis]
    high, low = threefry2x32_p.bind(first, second, jnp.zeros_like(count), count)
    return ((high ^ low) >> (16 * (entry % 2))).astype(jnp.uint16)


def has_own_counts(key: PRNGKeyArray, shape: tuple[int, ...]) -> bool:
    """Returns whether JAX draws random bits as `uint16_alone` does: from a count of 32 bits for each pair."""
    known = all(isinstance(size, int) for size in shape) and math.prod(shape) < 2**32
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore
    return known and partitionable and str(jax.random.key_impl(key)) == "threefry2x32"
