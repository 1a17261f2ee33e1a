"""The sum over heads for GPUs and TPUs, `sum_h attention_h X W_val^(h) W_out^(h)`: no array of all heads is transposed.

Attention that all images share: activations `(H, W, b, d)`, pixels before images, so that an average over keys is one
plain product for all images; values before averages. The gradients of `dense` are written out: autodiff would transpose
the largest arrays there are, `(h, q, b, d)`, 18 times per step of the paper's network. The ones below compute the
averages once more instead, and keep nothing of that size.

Attention from content: activations `(b, pixels, d)`, one image after the other. As query and key maps are merged, all
heads read the keys' activations themselves; with axes `(b, q, h, p)` those that a product sums over follow each other.

`einsum` sums over axes in the order of their letters, so letters follow the axes, `x` channels too.
Functions take and return images first: XLA cancels consecutive transposes.
"""

import functools
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from attn_cnn_jax.models.attention import cpu
from attn_cnn_jax.models.attention.scores import Maps, MergedMaps, softmax
from attn_cnn_jax.models.layers import at_least_float32, dropout_mask

CACHE = 50 * 2**20  # bytes of an H100's; averages of all heads that fit are not computed head by head


def dense(
    probabilities: Float[Array, "h q p"] | Float[Array, "b h q p"],
    x: Float[Array, "b H W d"],
    maps: Maps,
    devices: int = 1,
) -> Float[Array, "b i j o"]:
    """The sum over heads from all probabilities; those of each image, as under a gate, are averaged as on CPUs.

    `devices` is the number of those that share the images.
    """
    if probabilities.ndim == 4:
        return cpu.dense(probabilities, x, maps)
    batch, height, width, channels = x.shape
    probabilities, x = probabilities.astype(x.dtype), jnp.moveaxis(x, 0, 2).reshape(height * width, batch, channels)
    if maps.value is None:
        result = cast(Array, attended(probabilities, x, maps.output, 1 if batch % devices else devices))
    else:
        values = jnp.einsum("pbd,hdc->hpbc", x, maps.value)
        averages = jnp.einsum("hqp,hpbc->hqbc", probabilities, values)
        result = jnp.einsum("hqbc,hco->qbo", averages, maps.output)
    return jnp.moveaxis(result.reshape(-1, width, batch, result.shape[-1]), 2, 0)


def nearest_divisor(number: int, wanted: int) -> int:
    """Into how many groups of one size so many images or pixels are split: about as many as wanted."""
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - wanted))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attended(
    probabilities: Float[Array, "h q p"], x: Float[Array, "p b d"], maps: Float[Array, "h d o"], devices: int
) -> Float[Array, "q b o"]:
    """`sum_h attention_h X W^(h)`, of images that so many devices share evenly."""
    values = jnp.einsum("pbd,hdo->hpbo", x, maps)
    return jnp.einsum("hqp,hpbo->qbo", probabilities, values)


def attended_backward(devices, arguments, gradient):
    """Gradients with respect to probabilities, pixels and maps, from that of the result, `(q, b, o)`.

    Products with an axis of heads on both sides run for all heads at once and leave heads in front; the copies for each
    head are read, not made. A GPU computes a product tile by tile of its result: the gradients of attention and of maps
    have 36 and 72 tiles for the paper's network, and an H100 has 132 multiprocessors. So their sums are split, and the
    parts added in float32: of attention by about ten groups `g` of images per device, of maps by `d_maps_by_head`.
    """
    # Else XLA computes the averages in the forward pass, where all they need is known, and keeps those of all layers.
    gradient, (probabilities, x, maps) = jax.lax.optimization_barrier((gradient, arguments))
    (heads, queries, pixels), (batch, channels) = probabilities.shape, x.shape[1:]
    of_heads = jnp.broadcast_to(gradient, (heads, *gradient.shape))
    wide = at_least_float32(x.dtype)
    d_averages = jnp.einsum("hqbo,hdo->hqbd", of_heads, maps)
    dx = jnp.einsum("hqp,hqbd->pbd", probabilities, d_averages)
    groups = devices * nearest_divisor(batch // devices, 10)
    parts = groups, batch // groups, channels
    by_group = d_averages.reshape(heads, queries, *parts), x.reshape(pixels, *parts)
    d_probabilities = jnp.einsum("hqgbd,pgbd->ghqp", *by_group, preferred_element_type=wide).sum(axis=0)
    if d_averages.size * x.dtype.itemsize > devices * CACHE:
        d_maps = d_maps_by_head(probabilities, x, gradient, devices)
    else:
        averages = jnp.einsum("hqp,pbd->hqbd", probabilities, x)
        d_maps = jnp.einsum("hqbd,hqbo->hdo", averages, of_heads, preferred_element_type=wide)
    gradients = d_probabilities.astype(probabilities.dtype), dx, d_maps.astype(maps.dtype)
    # Else XLA puts off the maps' gradients on several GPUs, to overlap them with sums between devices, and keeps the
    # averages of all layers until then: 1.6 times the memory.
    return jax.lax.optimization_barrier(gradients)


def d_maps_by_head(probabilities, x, gradient, devices):
    """The gradient of maps of one head after the other, whose averages stay in the cache; of many groups of pixels `k`.

    Of all heads at once, in groups, XLA would write the gradient once per head first, or join products: 150 MiB more
    memory. Devices `n` add their sums after the loop.
    """
    groups = nearest_divisor(len(gradient), 16)
    shape = groups, len(gradient) // groups, devices, x.shape[1] // devices, -1
    parts = gradient.reshape(shape)

    def of_head(probabilities):
        averages = jnp.einsum("qp,pbd->qbd", probabilities, x).reshape(shape)
        wide = at_least_float32(x.dtype)
        return jnp.einsum("kmnpd,kmnpo->kndo", averages, parts, preferred_element_type=wide).sum(axis=0)

    return jax.lax.map(of_head, probabilities).sum(axis=1)


attended.defvjp(lambda *arguments: (attended(*arguments), arguments[:3]), attended_backward)


@jax.checkpoint  # keeps the arguments alone for gradients: averages of all heads are large, and cost little
def factorised(
    rows: Float[Array, "h i k"], columns: Float[Array, "h j l"], x: Float[Array, "b k l d"], maps: Maps
) -> Float[Array, "b i j o"]:
    """The sum over heads from row and column probabilities: values, averages along columns, averages along rows.

    Of merged maps the last are one product over (head, row). Memory grows as the pixels.
    """
    rows, columns, x = rows.astype(x.dtype), columns.astype(x.dtype), jnp.moveaxis(x, 0, 2)
    values = jnp.einsum("klbd,hdc->hklbc", x, maps.output if maps.value is None else maps.value)
    by_column = jnp.einsum("hjl,hklbc->hkjbc", columns, values)
    if maps.value is None:
        result = jnp.einsum("hik,hkjbo->ijbo", rows, by_column)
    else:
        averages = jnp.einsum("hik,hkjbc->hijbc", rows, by_column)
        result = jnp.einsum("hijbc,hco->ijbo", averages, maps.output)
    return jnp.moveaxis(result, 2, 0)


def content(
    x: Float[Array, "b H W d"],
    merged: MergedMaps,
    positions: Float[Array, "h q p"] | None,
    output: Float[Array, "h d o"],
    key: PRNGKeyArray | None,
    rate: float,
) -> Float[Array, "b i j o"]:
    """The sum over heads from content scores of all pairs of pixels, after dropout where a key is given.

    `positions` are scores that are added, `output` the merged maps of values and output, in the type of activations.
    """
    batch, height, width, channels = x.shape
    pixels, heads, wide = height * width, len(output), at_least_float32(x.dtype)
    keep, factor = dropout_mask(key, (batch, pixels, heads, pixels), rate)
    x = x.reshape(batch, pixels, channels)
    product = merged.product.reshape(channels, -1).astype(x.dtype)
    queries = (x.reshape(-1, channels) @ product).reshape(batch, pixels * heads, channels)
    of_keys = jnp.einsum("bpx,hx->bhp", x, merged.key.astype(x.dtype), preferred_element_type=wide)
    of_pairs = jnp.zeros((pixels, heads, pixels), wide)
    if positions is not None:
        of_pairs = jnp.moveaxis(positions.astype(wide), 0, 1)
    averages = cast(Array, attended_by_content(queries, x, of_keys, of_pairs, keep, factor))
    flat = averages.reshape(batch * pixels, -1) @ output.reshape(-1, output.shape[-1])
    return flat.reshape(batch, height, width, -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def attended_by_content(
    queries: Float[Array, "b m d"],
    x: Float[Array, "b p d"],
    of_keys: Float[Array, "b h p"],
    of_pairs: Float[Array, "q h p"],
    keep: Bool[Array, "b q h p"] | None,
    factor: float,
) -> Float[Array, "b m d"]:
    """Averages of the pixels, for every query and head, `m = q h`; scores are products plus both terms.

    For its gradients it keeps the probabilities alone, in the type of activations, dropped ones as negative numbers. A
    step by autodiff takes 1.2 times the memory.
    """
    return attended_by_content_forward(queries, x, of_keys, of_pairs, keep, factor)[0]


def attended_by_content_forward(queries, x, of_keys, of_pairs, keep, factor):
    """`attended_by_content`, and what its gradients need."""
    (heads, pixels), wide = of_keys.shape[1:], at_least_float32(x.dtype)
    products = jnp.einsum("bqx,bpx->bqp", queries, x, preferred_element_type=wide)
    scores = products.reshape(-1, pixels, heads, pixels) + of_keys[:, None] + of_pairs[None]
    probabilities = softmax(scores).astype(x.dtype)
    signed = probabilities if keep is None else jnp.where(keep, probabilities, -probabilities)
    signed = signed.reshape(products.shape)
    return jnp.einsum("bqp,bpx->bqx", kept(signed, factor), x), (queries, x, signed)


def attended_by_content_backward(factor, residuals, gradient):
    """Gradients with respect to queries, pixels and both terms of scores, from that of the averages."""
    queries, x, signed = residuals
    heads, wide = signed.shape[1] // signed.shape[2], at_least_float32(x.dtype)
    of_kept = jnp.einsum("bqx,bpx->bqp", gradient, x)
    along = kept(signed, factor).astype(wide) * of_kept.astype(wide)
    of_scores = along - jnp.abs(signed).astype(wide) * along.sum(axis=-1, keepdims=True)
    of_scores = of_scores.astype(x.dtype)
    of_queries = jnp.einsum("bqp,bpx->bqx", of_scores, x)
    of_x = jnp.einsum("bqp,bqx->bpx", of_scores, queries) + jnp.einsum("bqp,bqx->bpx", kept(signed, factor), gradient)
    by_head = of_scores.reshape(len(x), -1, heads, x.shape[1]).astype(wide)
    return of_queries, of_x, by_head.sum(axis=1), by_head.sum(axis=0), None


attended_by_content.defvjp(attended_by_content_forward, attended_by_content_backward)


def kept(signed: Float[Array, "*any p"], factor: float) -> Float[Array, "*any p"]:
    """Probabilities after dropout, from those before, of which the dropped ones are negative."""
    return jnp.maximum(signed, 0) * jnp.asarray(factor, signed.dtype)
