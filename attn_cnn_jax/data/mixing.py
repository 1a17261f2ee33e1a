"""Mixup and CutMix: every picture is mixed with the next one of its batch, and so are their labels.

Pure functions that run on the device, inside the training step. What a picture becomes depends on the key, on its place
in the batch and on the picture after it alone, so that the result is the same however the batch is spread over devices.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn_cnn_jax.arrays import AnyArray, Key, Labels


class Mixed(NamedTuple):
    """A batch whose pictures have two labels each.

    Attributes:
      images: normalised.
      labels: of the picture that has the larger share.
      others: of the other one.
      share: of `labels`, from 1/2 to 1.
    """

    images: Float[Array, "b H W C"]
    labels: Labels
    others: Labels
    share: Float[Array, " b"]


def mix(key: Key, images: Float[AnyArray, "b H W C"], labels: Labels, *, kind: str, alpha: float, count: int) -> Mixed:
    """Returns a batch mixed picture by picture.

    The share of a picture itself is drawn from Beta(alpha, alpha). "mixup" takes the weighted mean of the two pictures.
    "cutmix" cuts a rectangle of the picture's proportions out of the second one, with 1 - share of the area, centred
    on any pixel, and pastes it into the first; the share is then what is left of the first.

    Args:
      key: a JAX random key; the same key and batch give the same pictures.
      images: normalised.
      labels: their classes.
      kind: "mixup" or "cutmix"; static under `jax.jit`.
      alpha: above 0; 1 makes all shares as probable.
      count: how many pictures of the batch are mixed among each other; those after them only fill it up.
    """
    size, height, width, _ = images.shape
    places = np.arange(size)
    partners = np.where(places < count, (places + 1) % count, places)
    # A key per place: what is drawn does not depend on how many pictures fill up the batch.
    keys = jax.vmap(lambda place: jax.random.split(jax.random.fold_in(key, place)))(places)
    share_keys, centre_keys = keys[:, 0], keys[:, 1]
    share = jax.vmap(lambda each: jax.random.beta(each, alpha, alpha, dtype=jnp.float32))(share_keys)
    if kind == "mixup":
        weight = share[:, None, None, None]
    else:
        centres = jax.vmap(lambda each: jax.random.randint(each, (2,), 0, jnp.array([height, width])))(centre_keys)
        pasted = jax.vmap(functools.partial(rectangle, height=height, width=width))(1 - share, centres)
        share = 1 - pasted.mean(axis=(1, 2), dtype=jnp.float32)
        weight = 1 - pasted[..., None].astype(jnp.float32)
    weight = weight.astype(images.dtype)
    mixed = weight * images + (1 - weight) * images[partners]
    is_main, others = share >= 0.5, labels[partners]
    main, other = jnp.where(is_main, labels, others), jnp.where(is_main, others, labels)
    return Mixed(mixed, main, other, jnp.maximum(share, 1 - share))


def rectangle(area: Float[AnyArray, ""], centre: Int[AnyArray, "2"], height: int, width: int) -> Bool[Array, "H W"]:
    """Returns the pixels of a rectangle of the picture's proportions: `area` of the picture, less beyond the border."""
    sides = [jnp.floor(side * jnp.sqrt(area)).astype(jnp.int32) for side in (height, width)]
    first = [middle - side // 2 for middle, side in zip(centre, sides, strict=True)]
    rows, columns = (
        (start <= jnp.arange(length)) & (jnp.arange(length) < start + side)
        for start, side, length in zip(first, sides, (height, width), strict=True)
    )
    return rows[:, None] & columns[None, :]
