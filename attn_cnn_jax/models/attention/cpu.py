"""The sum over heads for CPUs, `sum_h attention_h X W_val^(h) W_out^(h)`: images first, activations `(b, H, W, d)`.

Memory is slow: a few images at a time stay in the cache; heads that factorise, or are wide, are added up one by one.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax import compiling
from attn_cnn_jax.models.attention.parts import in_parts
from attn_cnn_jax.models.attention.scores import Maps
from attn_cnn_jax.models.layers import at_least_float32, flattened

PIXELS_PER_PART = 1280  # of factorised attention


def dense(
    probabilities: Float[Array, "h q p"] | Float[Array, "b h q p"],
    x: Float[Array, "b H W d"],
    maps: Maps,
    devices: int = 1,
) -> Float[Array, "b i j o"]:
    """The sum over heads from all probabilities, `q = i j`, `p = H W`; without an axis of images all share these.

    `devices` is the number of those that share the images.
    """
    shared = probabilities.ndim == 3
    if maps.value is not None or (shared and devices > 1):
        return side_by_side(probabilities, x, maps)
    return (one_by_one_of_all if shared else one_by_one)(probabilities, x, maps.output)


@compiling.jit
def side_by_side(
    probabilities: Float[Array, "h q p"] | Float[Array, "b h q p"], x: Float[Array, "b H W d"], maps: Maps
) -> Float[Array, "b i j o"]:
    """`dense` by one product of the averages of all heads, images first."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height * width, channels)
    values = x if maps.value is None else jnp.einsum("bpd,hdc->bphc", x, maps.value)
    heads = jax.vmap(jnp.matmul, in_axes=(0, None if maps.value is None else 1), out_axes=1)
    images = jax.vmap(heads, in_axes=(None if probabilities.ndim == 3 else 0, 0))
    averages = images(probabilities.astype(x.dtype), values)
    output = maps.output.reshape(-1, maps.output.shape[-1])
    return flattened(lambda x: x @ output, averages.reshape(batch, -1, width, len(output)))


@compiling.jit
def one_by_one_of_all(
    probabilities: Float[Array, "h q p"], x: Float[Array, "b H W d"], maps: Float[Array, "h d o"]
) -> Float[Array, "b i j o"]:
    """`dense` head by head where averages are as wide as the image's channels; pixels lie before images.

    An average is then one product for all images. Side by side XLA would copy the averages, the largest arrays here.
    """
    batch, _, width, channels = x.shape
    pixels = jnp.moveaxis(x, 0, 2).reshape(probabilities.shape[-1], -1)
    averages = [(attention @ pixels).reshape(-1, channels) for attention in probabilities.astype(x.dtype)]
    return jnp.moveaxis(mapped(averages, maps).reshape(-1, width, batch, maps.shape[-1]), 2, 0)


@compiling.jit
def one_by_one(
    probabilities: Float[Array, "b h q p"], x: Float[Array, "b H W d"], maps: Float[Array, "h d o"]
) -> Float[Array, "b i j o"]:
    """The same where every image has its own probabilities; all averages of an image are one product."""
    batch, heads, _, pixels = probabilities.shape
    width, channels = x.shape[2:]
    of_all = probabilities.astype(x.dtype).reshape(batch, -1, pixels) @ x.reshape(batch, pixels, channels)
    averages = jnp.moveaxis(of_all.reshape(batch, heads, -1, channels), 1, 0).reshape(heads, -1, channels)
    return mapped(list(averages), maps).reshape(batch, -1, width, maps.shape[-1])


def mapped(averages: Sequence[Float[Array, "n d"]], maps: Float[Array, "h d o"]) -> Float[Array, "n o"]:
    """The sum over heads of each one's average times its map, added in float32 or wider."""
    wide = at_least_float32(maps.dtype)
    of_heads = [jnp.matmul(*head, preferred_element_type=wide) for head in zip(averages, maps, strict=True)]
    return functools.reduce(jnp.add, of_heads).astype(maps.dtype)


@compiling.jit
def factorised(
    rows: Float[Array, "h i k"], columns: Float[Array, "h j l"], x: Float[Array, "b k l d"], maps: Maps
) -> Float[Array, "b i j o"]:
    """The sum over heads from row and column probabilities; no array has two pixel axes."""
    heads = rows.astype(x.dtype), columns.astype(x.dtype)

    def average(head, values):
        rows, columns = head
        height, width = values.shape[:2]
        # Images are averaged like channels, as one axis, and by one matrix product: XLA makes a slower one of three.
        by_row = (rows @ values.reshape(height, -1)).reshape(-1, width, math.prod(values.shape[2:]))
        # The columns are repeated for every row, since XLA would otherwise transpose the values on CPUs.
        repeated = jnp.broadcast_to(columns, (rows.shape[0], *columns.shape))
        averages = jnp.einsum("ijl,ilc->ijc", repeated, by_row)
        return averages.reshape(*averages.shape[:2], *values.shape[2:])

    def of_images(x, *_):
        return sum_over_heads(average, heads, x, maps)

    return in_parts(of_images, x, images=PIXELS_PER_PART // math.prod(x.shape[1:3]))


def sum_over_heads(average: Callable, heads: Any, x: Float[Array, "b k l d"], maps: Maps) -> Float[Array, "b i j o"]:
    """`sum_h average(head_h, X W_val^(h)) W_out^(h)`, one head after the other, so that no array holds all of them.

    Images lie between pixels and channels here: all products are then plain ones, without transposes. `average` takes
    one head's entry of `heads`, a tree of arrays with heads first, and its values `(k, l, b, c)`, to `(i, j, b, c)`.
    """
    x = jnp.moveaxis(x, 0, 2)
    total_dtype = at_least_float32(x.dtype)

    def of_head(head, maps):
        values = x if maps.value is None else flattened(lambda x: x @ maps.value, x)
        averages = average(head, values)
        return flattened(lambda x: jnp.matmul(x, maps.output, preferred_element_type=total_dtype), averages)

    @jax.checkpoint  # an average costs less than reading it back
    def add_head(total, head_and_maps):
        return total + of_head(*head_and_maps), None

    shape = jax.eval_shape(of_head, *jax.tree.map(lambda leaf: leaf[0], (heads, maps)))
    total, _ = jax.lax.scan(add_head, jnp.zeros(shape.shape, total_dtype), (heads, maps))
    return jnp.moveaxis(total, 2, 0).astype(x.dtype)
