"""The paper's formula for one head: its scores, pure functions of shifts and of content; softmax; its linear maps.

Attention is the softmax over keys of the sum of a head's scores; constants that do not depend on the key drop out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_cnn_jax.models.layers import at_least_float32


class Maps(NamedTuple):
    """`W_val` and `W_out` of every head; `c` is a head's channels, or `d` where `W_val` is merged into it: None."""

    value: Float[Array, "h d c"] | None
    output: Float[Array, "h c o"]


class MergedMaps(NamedTuple):
    """Maps of content scores, up to a constant per query `x_q M x_k + v x_k`, in the type of parameters.

    `product` is `M = W_q W_k^T / sqrt(D_h)`, by channel of the query, head, channel of the key; `key` is
    `v = W_k b_q / sqrt(D_h)`.
    """

    product: Float[Array, "d h d"]
    key: Float[Array, "h d"]


def softmax(scores: Float[Array, "*heads p"]) -> Float[Array, "*heads p"]:
    """Softmax over keys, the last axis, in float32 or wider."""
    return jax.nn.softmax(scores.astype(at_least_float32(scores.dtype)), axis=-1)


def outer(rows: Float[Array, "h i k"], columns: Float[Array, "h j l"]) -> Float[Array, "h q p"]:
    """Attention that factorises, from its row and column softmax, pixels flattened: `q = i j`, `p = k l`."""
    product = rows[:, :, None, :, None] * columns[:, None, :, None, :]
    return product.reshape(rows.shape[0], rows.shape[1] * columns.shape[1], -1)


def quadratic_axis(
    shift: Float[Array, "*shifts"], centre: Float[Array, ""], spread: Float[Array, ""]
) -> Float[Array, "*shifts"]:
    """One axis of the isotropic quadratic encoding (eq. 9): `-alpha (delta - Delta)^2`, `alpha = s^2 / 2`.

    Shift and centre are in pixels, the spread `s`, the inverse standard deviation of the attention, in one over pixels.
    """
    return -0.5 * jnp.square(spread) * jnp.square(shift - centre)


def gaussian(
    row_shift: Float[Array, "*#shifts"],
    column_shift: Float[Array, "*#shifts"],
    centre: Float[Array, "2"],
    spread: Float[Array, "2 2"],
) -> Float[Array, "..."]:
    """Generalised quadratic encoding: `-1/2 (delta - mu)^T Sigma^-1 (delta - mu)`, `Sigma^-1 = S S^T`; in pixels."""
    row, column = row_shift - centre[0], column_shift - centre[1]
    # |S^T delta|^2 rather than delta^T (S S^T) delta: never positive, whatever the rounding.
    along = [row * spread[0, a] + column * spread[1, a] for a in range(2)]
    return -0.5 * (jnp.square(along[0]) + jnp.square(along[1]))


def at_shifts(by_shift: Float[Array, "s ..."], shift: Int[Array, "i k"]) -> Float[Array, "i k ..."]:
    """Values that are given by shift, from `-(M - 1)` to `M - 1`, looked up for every query and key of an axis."""
    return by_shift[shift + (by_shift.shape[0] - 1) // 2]


def content(query: Float[Array, "q c"], key: Float[Array, "p c"]) -> Float[Array, "q p"]:
    """Content scores `q . k / sqrt(D_h)` (first term of eq. 8, scaled), in float32 or wider."""
    scores = jnp.einsum("qc,pc->qp", query, key, preferred_element_type=at_least_float32(query.dtype))
    return scores * query.shape[-1] ** -0.5


@jax.custom_jvp
def add_shared(of_images: Float[Array, "b h q p"], shared: Float[Array, "h q p"]) -> Float[Array, "b h q p"]:
    """Adds to what every image has what all of them share."""
    return of_images + shared[None]


@add_shared.defjvp
def _add_shared_jvp(arguments, tangents):
    """Repeats the shared tangent by a product with ones, whose transpose sums gradients over images.

    On CPUs XLA takes up to ten times as long for a sum over the first axis: a third of a step of the miniature.
    """
    of_images, shared = tangents
    ones = jnp.ones((of_images.shape[0], 1), shared.dtype)
    return add_shared(*arguments), of_images + (ones @ shared.reshape(1, -1)).reshape(of_images.shape)
