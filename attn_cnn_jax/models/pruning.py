"""Finds, prunes and resets degenerate heads, and says what training leaves alone; heads are counted from 0.

Works on the named arrays of a network (variables.py) and on `head_axis` of its layers and encodings.
"""

import fnmatch
import math
import re
from collections.abc import Collection, Iterator, Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Arrays, Grid
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.encoding import Encoding
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.encodings import CentredEncoding
from attn_cnn_jax.models.variables import split

HEAD = "classifier."  # the parameters that depend on the classes
NAME = re.compile(r"blocks\.(\d+)\.attention\.(.+)")
UNIFORM = 0.999  # share of the largest entropy possible above which attention counts as uniform
SMALLEST_PRECISION = 1e-5  # one over square pixels; the release's threshold for uniform attention
LARGEST_CONDITION_NUMBER = 1000.0  # of Sigma^-1; the release's threshold for attention to a line

Heads = Mapping[int, Collection[int]]  # of some layers, by the layer's number


def degenerate_heads(model: AttentionClassifier, grid: Grid) -> dict[int, dict[int, str]]:
    """The heads that learned nothing, by layer and head, with the reason; layers without any are left out.

    A layer that also attends by content has none: a head without a position of its own still attends.
    """
    layers = {n: block.attention for n, block in enumerate(model.blocks) if not block.attention.depends_on_content}
    found = {n: reasons(layer.position, grid) for n, layer in layers.items()}
    return {layer: heads for layer, heads in found.items() if heads}


def reasons(encoding: Encoding, grid: Grid) -> dict[int, str]:
    """The degenerate heads of an encoding, with the reason.

    Quadratic heads by their parameters, as the release judges them; all others by the entropy of the attention of the
    central query pixel.
    """
    if isinstance(encoding, CentredEncoding):
        why = [reason(spread) for spread in np.asarray(encoding.spread[...], np.float64)]
    else:
        height, width = grid
        terms = encoding.position_terms(height, width, jnp.array([height // 2])).values()
        scores = np.sum([np.asarray(term, np.float64)[:, 0, width // 2] for term in terms], axis=0)
        weights = np.exp(scores - scores.max(axis=(-2, -1), keepdims=True))
        why = [uniform(entropy, grid) for entropy in np.atleast_1d(moments.entropy(weights))]
    return {head: text for head, text in enumerate(why) if text}


def uniform(entropy: float, grid: Grid) -> str:
    """Why attention of an entropy (nats) over the pixels of a grid is degenerate; "" if it is not uniform."""
    most = math.log(math.prod(grid))
    return f"uniform: entropy {entropy:.4f} of at most {most:.4f}" if entropy > UNIFORM * most else ""


def reason(spread: float | Float[np.ndarray, "2 2"]) -> str:
    """Why a head of spread `s`, or `S` `(2, 2)`, is degenerate, by the eigenvalues of `Sigma^-1` (release); else ""."""
    if np.ndim(spread) == 0:
        return f"uniform: s^2 {spread**2:.1e} < 1e-05" if spread**2 < SMALLEST_PRECISION else ""
    largest, smallest = np.linalg.svd(spread, compute_uv=False) ** 2
    if largest < SMALLEST_PRECISION:
        return f"uniform: largest eigenvalue {largest:.1e} < 1e-05"
    # Multiplied out, so that a singular spread has no division by zero.
    if largest > LARGEST_CONDITION_NUMBER * smallest:
        number = largest / smallest if smallest > 0 else np.inf
        return f"a line: condition number {number:.0f} > {LARGEST_CONDITION_NUMBER:.0f}"
    return ""


def head_axes(layer: SelfAttention) -> dict[str, int]:
    """By parameter of a layer, the axis that counts heads, alone or together with the channels of a head."""
    axes = dict(layer.head_axis)
    for part, encoding in (("position", layer.position), ("content", layer.content)):
        if encoding is not None:
            axes |= {f"{part}.{name}": axis for name, axis in encoding.head_axis.items()}
    return axes


def prune(model: AttentionClassifier, heads: Heads) -> Arrays:
    """The parameters without some heads; their network computes what it did with these heads' values zero."""
    parameters = split(model)[1]
    return parameters | {
        name: jnp.compress(~mask.ravel(), parameters[name], axis=mask.shape.index(mask.size))
        for name, mask in entries(model, heads).items()
    }


def reset(model: AttentionClassifier, fresh: Arrays, heads: Heads) -> Arrays:
    """The parameters with some heads taken from `fresh`, the parameters of a new network of the same shape."""
    parameters = split(model)[1]
    return parameters | {
        name: jnp.where(mask, fresh[name], parameters[name]) for name, mask in entries(model, heads).items()
    }


def parameters_of_layers(model: AttentionClassifier) -> Iterator[tuple[str, Array, int, str]]:
    """Parameters of attention layers: each one's name, its values, the layer's number, its name below the layer."""
    for name, array in split(model)[1].items():
        if match := NAME.fullmatch(name):
            yield name, array, int(match[1]), match[2]


def entries(model: AttentionClassifier, heads: Heads) -> dict[str, Bool[np.ndarray, "..."]]:
    """Which entries of the parameters are those of some heads, by the parameter's name, only where any is.

    Masks are `(1, ..., h c, ..., 1)` and broadcast to the parameter.
    """
    masks = {}
    for name, array, n, part in parameters_of_layers(model):
        count, axis = model.blocks[n].attention.num_heads, head_axes(model.blocks[n].attention).get(part)
        if axis is not None and (chosen := np.isin(np.arange(count), list(heads.get(n, ())))).any():
            along = np.repeat(chosen, array.shape[axis] // count)
            masks[name] = along.reshape(*(-1 if a == axis else 1 for a in range(array.ndim)))
    return masks


def fixed(
    model: AttentionClassifier, free: Heads, *, positions: bool, values: bool
) -> dict[str, Bool[np.ndarray, "..."]]:
    """Which entries training must leave alone to keep the positions or value maps of all heads but `free`.

    As `entries`; where all heads share a parameter of positions, such as a table, all of it.
    """
    held = {n: set(range(block.attention.num_heads)) - set(free.get(n, ())) for n, block in enumerate(model.blocks)}
    of_heads, masks = entries(model, held), {}
    for name, array, n, part in parameters_of_layers(model):
        layer = model.blocks[n].attention
        is_position = part.startswith("position.") and layer.position.accepts_content()
        if (positions and is_position) or (values and part in layer.values):
            if part not in head_axes(layer):
                masks[name] = np.ones((1,) * array.ndim, bool)
            elif name in of_heads:
                masks[name] = of_heads[name]
    return masks


def frozen_mask(start: ConfigDict, model: nnx.Module) -> dict[str, np.ndarray]:
    """Returns what training leaves alone, as `freeze` of `config.start` says; frozen batch norms keep their statistics.

    It is, by a parameter's name, a boolean array that broadcasts to it, true in entries that must not change: all, or
    those of heads (see `fixed`). UserError if a pattern fits no parameter, or nothing is left to train.
    """
    words = [word.strip() for word in start.freeze.split(",") if word.strip()]
    patterns = [word for word in words if word not in ("positions", "values")]
    frozen = {name: np.array(True) for name in frozen_names(patterns, list(split(model)[1]))}
    for path, module in nnx.iter_modules(model):
        name = ".".join(map(str, path))
        if isinstance(module, nnx.BatchNorm) and {f"{name}.scale", f"{name}.bias"} <= frozen.keys():
            module.momentum = 1.0
    if not isinstance(model, AttentionClassifier):
        return frozen
    free: dict[int, set[int]] = {}
    for layer, head in start.heads if start.reset else ():
        free.setdefault(layer - 1, set()).add(head - 1)
    return fixed(model, free, positions="positions" in words, values="values" in words) | frozen


def frozen_names(patterns: list[str], names: list[str]) -> list[str]:
    """Returns the parameters that patterns fit; the pattern `encoder` fits all but the classifier."""
    frozen = set()
    for pattern in patterns:
        fits = fnmatch.filter(names, pattern)
        if pattern == "encoder":
            fits = [name for name in names if not name.startswith(HEAD)]
        if not fits:
            allowed = "allowed are 'encoder', 'positions', 'values' and patterns of names such as"
            raise UserError(f"config.start.freeze has {pattern!r}, which fits no parameter\n{allowed} {listed(names)}")
        frozen |= set(fits)
    if len(frozen) == len(names):
        raise UserError(f"config.start.freeze={','.join(patterns)!r}: allowed is what leaves a parameter to train")
    return [name for name in names if name in frozen]
