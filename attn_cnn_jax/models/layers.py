"""Pieces of every network here: linear maps that start as PyTorch's, layer norm, dropout, the type of parameters."""

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt16

from attn_cnn_jax.errors import UserError

LAYER_NORM_EPSILON = 1e-12
AT_ONCE = 2**16  # numbers that are drawn for a parameter, or four times as many until they are enough


def in_precision(precision: str, function: Callable) -> Callable:
    """The function, to be jitted, with products in a `jax.default_matmul_precision`; "default" leaves it to JAX."""
    return function if precision == "default" else jax.default_matmul_precision(precision)(function)


def drawn(draw: Callable[..., Float[Array, " n"]], key: PRNGKeyArray, shape: tuple[int, ...], *arguments: Any) -> Array:
    """What `draw(key, shape, *arguments)` of `jax.random` is, by one program for most shapes.

    A program is compiled for every number of draws, in 0.1 to 0.4 s on CPUs, and another one for every cut; so more
    numbers are drawn, and cut on the host. Each number of JAX's default generator depends on its place alone.
    """
    count, most = math.prod(shape), AT_ONCE
    while most < count:
        most *= 4
    numbers = draw(key, (most,), *arguments)
    if isinstance(numbers, Tracer):
        return jax.lax.slice(numbers, (0,), (count,)).reshape(shape)
    return jax.device_put(jax.device_get(numbers)[:count].reshape(shape).copy())  # and lets go of the others


def normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Parameters that start as N(0, 1)."""
    return drawn(jax.random.normal, key, shape, dtype)


@functools.cache
def uniform(fan_in: int) -> nnx.Initializer:
    """PyTorch's initialiser of linear maps and convolutions: uniform in `+-1/sqrt(fan_in)`."""
    bound = 1 / math.sqrt(fan_in)

    def init(key, shape, dtype, out_sharding=None):
        del out_sharding
        return drawn(jax.random.uniform, key, shape, dtype, -bound, bound)

    return init


def at_least_float32(dtype: DTypeLike) -> jnp.dtype:
    """The type of parameters, scores, softmax and loss where activations are of `dtype`."""
    return max(jnp.dtype(dtype), jnp.dtype(jnp.float32), key=lambda d: d.itemsize)


def flattened(
    function: Callable[[Float[Array, "_ d"]], Float[Array, "_ o"]], x: Float[Array, "*pixels d"]
) -> Float[Array, "*pixels o"]:
    """A map of the last axis over flattened others: beyond two XLA copies a transpose for the weight gradient."""
    result = function(x.reshape(-1, x.shape[-1]))
    return result.reshape(*x.shape[:-1], result.shape[-1])


class OnPlatform(nnx.Module):
    """A layer that is computed as is best where it runs.

    Attributes:
      platform: what the layer is compiled for, see `attention.layer.for_platform`; None for JAX's default backend.
    """

    platform: str | None = None

    @property
    def target(self) -> str:
        """The platform that the layer is compiled for: "cpu", "gpu" or "tpu"."""
        return self.platform or jax.default_backend()


class Linear(OnPlatform, nnx.Linear):
    """A linear map of the last axis; on CPUs the gradient of its bias is a product."""

    def __call__(self, x: Float[Array, "*rows d"]) -> Float[Array, "*rows o"]:
        """`x W + b`, in the type of activations."""
        if self.bias is None or self.target != "cpu":
            return super().__call__(x)
        x, kernel, bias = self.promote_dtype((x, self.kernel[...], self.bias[...]), dtype=self.dtype)
        return flattened(lambda x: x @ kernel + over_rows(bias, x.shape[0]), x)


class LayerNorm(OnPlatform, nnx.LayerNorm):
    """Layer norm over the last axis, as BERT has it: its epsilon is inside the square root."""

    def __call__(self, x: Float[Array, "*rows d"]) -> Float[Array, "*rows d"]:
        """`(x - mean) / sqrt(variance + epsilon) * scale + bias`, in the type of activations."""
        if self.target != "cpu":
            return super().__call__(x)
        scale, bias = self.scale[...], self.bias[...]  # pyright: ignore[reportOptionalSubscript]

        def normalised(x):
            centred, rows = x - x.mean(axis=-1, keepdims=True), x.shape[0]
            inverse = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + self.epsilon)
            return centred * inverse * over_rows(scale, rows) + over_rows(bias, rows)

        return flattened(normalised, x.astype(scale.dtype)).astype(self.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def over_rows(x: Float[Array, " d"], rows: Any) -> Float[Array, "n d"]:
    """A number per channel, repeated for so many rows, symbolic too; its gradient is a product with ones.

    A gradient that is a plain sum over rows XLA fuses on CPUs with all that leads there, and computes that again for
    every such sum, layer after layer. A product reads what is stored, which then serves all.
    """
    return jnp.broadcast_to(x, (rows, x.shape[0]))


@over_rows.defjvp
def _over_rows_jvp(rows, primals, tangents):
    ones = jnp.ones((rows, 1), tangents[0].dtype)
    return over_rows(*primals, rows), ones @ tangents[0][None]


def linear(in_features: int, out_features: int, *, dtype: DTypeLike, rngs: nnx.Rngs, use_bias: bool = True) -> Linear:
    """A linear map whose weight and bias start uniform in `+-1/sqrt(in_features)`, computed in `dtype`."""
    start = uniform(in_features)
    common = {"dtype": dtype, "param_dtype": at_least_float32(dtype), "rngs": rngs}
    return Linear(in_features, out_features, use_bias=use_bias, kernel_init=start, bias_init=start, **common)


def layer_norm(channels: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> LayerNorm:
    """Layer norm over the last axis, whose statistics and parameters are float32 or wider."""
    exact = {"epsilon": LAYER_NORM_EPSILON, "use_fast_variance": False}
    return LayerNorm(channels, dtype=dtype, param_dtype=at_least_float32(dtype), rngs=rngs, **exact)


def dropout(key: PRNGKeyArray | None, x: Float[Array, "*any"], rate: float) -> Float[Array, "*any"]:
    """Zeroes entries with probability `rate`, each on its own, and scales the others to keep the mean.

    The rate is rounded to a multiple of 2^-16: sixteen random bits per entry are enough and cost half of what 32 cost.
    Without a key, in evaluation, `x` is left as it is.
    """
    return masked(x, *dropout_mask(key, x.shape, rate))


def masked(x: Float[Array, "*any"], keep: Bool[Array, "*any"] | None, factor: float) -> Float[Array, "*any"]:
    """`x` after dropout by a mask of `dropout_mask`."""
    return x if keep is None else jnp.where(keep, x * jnp.asarray(factor, x.dtype), jnp.zeros((), x.dtype))


def dropout_mask(
    key: PRNGKeyArray | None, shape: tuple[Any, ...], rate: float
) -> tuple[Bool[Array, "..."] | None, float]:
    """Which entries `dropout` keeps, and what it multiplies them with; None and 1 where it drops nothing."""
    threshold = round(rate * 2**16)
    if key is None or threshold == 0:
        return None, 1.0
    return random_uint16(key, shape) >= jnp.uint16(threshold), 2**16 / (2**16 - threshold)


def random_uint16(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt16[Array, "..."]:
    """Uniform 16-bit integers, two from every 32 random bits."""
    *outer, last = shape
    pairs = jax.random.bits(key, (*outer, (last + 1) // 2), jnp.uint32)
    return jax.lax.bitcast_convert_type(pairs, jnp.uint16).reshape(*outer, -1)[..., :last]


def check_sizes(**sizes: Any) -> None:
    """Raises UserError unless all sizes are integers of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise UserError(f"{name}={size!r}: allowed is an integer of at least 1")


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raises UserError unless the value is one of those allowed."""
    if value not in allowed:
        raise UserError(f"{name}={value!r}: allowed is one of {', '.join(allowed)}")


def check_rate(name: str, rate: Any) -> None:
    """Raises UserError unless the value can be the rate of `dropout`."""
    if not isinstance(rate, int | float) or not 0 <= rate <= 1 - 2**-16:
        raise UserError(f"{name}={rate!r}: allowed is a number from 0 to 1 - 2^-16")
