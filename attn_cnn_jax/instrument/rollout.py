"""Attention rollout and class-token maps: how much of every patch reaches a token through all layers, or one.

Rollout (Abnar, Zuidema, ACL 2020) multiplies, layer by layer, the mean over heads, half of each layer passing by.
Windows are put at their places in the image; where patches are merged, a new one has the mean of what it is made of.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.instrument.layer import Layer


def rollout(layers: Sequence[Layer]) -> Float[np.ndarray, "b t p"]:
    """Returns by token, class and register tokens first, the share of each patch of the first layer, summing to 1.

    UserError where patches of a layer are not merged from those of the layer before, and where a layer before the last
    one was not measured: what it moves would be missing.
    """
    numbers = [layer.number for layer in layers]
    if missing := [n for n in range(numbers[-1]) if n not in numbers]:
        what = listed([str(n + 1) for n in missing], 3)
        raise UserError(f"rollout goes through all layers to the last one, and layer {what} was not measured")
    most = max(len(layer.layout.others) for layer in layers)
    grid = layers[0].layout.image
    result = np.eye(most + grid[0] * grid[1], dtype=np.float32)[None]
    for layer in layers:
        layout, count = layer.layout, most + layer.layout.image[0] * layer.layout.image[1]
        if layout.image != grid:
            result = merged(grid, layout.image, most) @ result
            grid = layout.image
        attention = np.tile(np.eye(count, dtype=np.float32), (len(layer.attention) // layout.windows, 1, 1))
        for n, (tokens, places) in enumerate(zip(layout.tokens, layout.places, strict=True)):
            own = np.append(layout.others, tokens)
            whole = np.append(np.arange(len(layout.others)), most + places)
            attention[:, whole[:, None], whole] = layer.mean_heads[n :: layout.windows][:, own[:, None], own]
        result = (result + attention @ result) / 2
    result = result[..., most:]
    return result / np.maximum(result.sum(axis=-1, keepdims=True), 1e-30)


def merged(fine: Grid, coarse: Grid, others: int) -> Float[np.ndarray, "s t"]:
    """The means over blocks of patches that make a layer's patches, class and register tokens as they are."""
    if fine[0] % coarse[0] or fine[1] % coarse[1]:
        raise UserError(f"rollout from {fine[0]}x{fine[1]} to {coarse[0]}x{coarse[1]} patches: no whole blocks merge")
    sides = [np.repeat(np.eye(new), old // new, axis=1) * new / old for old, new in zip(fine, coarse, strict=True)]
    patches = np.kron(*sides).astype(np.float32)
    whole = np.eye(others + len(patches), others + patches.shape[1], dtype=np.float32)
    whole[others:, others:] = patches
    return whole


def maps(layers: Sequence["Layer"]) -> dict[str, Float[np.ndarray, "b *h r c"]]:
    """Returns `rollout` of the class token, without one of the mean over patches, and its attention in every layer.

    The attention, `class_token_layer_N`, is by head and with a sum below one: the rest is on class and register tokens.
    """
    whole = rollout(layers)
    others = max(len(layer.layout.others) for layer in layers)
    of_token = whole[:, 0] if others else whole.mean(axis=1)
    found = {"rollout": of_token.reshape(-1, *layers[0].layout.image)}
    for layer in layers:
        if layer.class_token is not None:
            found[f"class_token_layer_{layer.number + 1}"] = layer.class_token.reshape(
                *layer.class_token.shape[:2], *layer.grid
            )
    return found
