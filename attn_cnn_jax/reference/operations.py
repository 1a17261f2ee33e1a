"""What single operations of JAX are in NumPy, in double precision: rules by the name of the primitive.

A rule takes the equation and its inputs, and returns None where it leaves the operation to JAX. `Any` is an array of
NumPy, or random keys, which JAX holds.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def widened(x: Any) -> Any:
    """Returns an array as NumPy holds it, floating point as float64; random keys stay JAX arrays."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    x = np.asarray(x)
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def dot_general(e: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Batched matrix product: batch axes first, then the free ones of `x`, then those of `y`."""
    (sum_x, sum_y), (batch_x, batch_y) = e.params["dimension_numbers"]
    free_x = [n for n in range(x.ndim) if n not in {*sum_x, *batch_x}]
    free_y = [n for n in range(y.ndim) if n not in {*sum_y, *batch_y}]
    left = x.transpose(*batch_x, *free_x, *sum_x)
    right = y.transpose(*batch_y, *sum_y, *free_y)
    shape = (*left.shape[: len(batch_x) + len(free_x)], *(y.shape[n] for n in free_y))
    terms, batch = int(np.prod([x.shape[n] for n in sum_x])), left.shape[: len(batch_x)]
    rows = int(np.prod([x.shape[n] for n in free_x]))
    return (left.reshape(*batch, rows, terms) @ right.reshape(*batch, terms, -1)).reshape(shape)


def conv_general_dilated(e: Any, x: np.ndarray, kernel: np.ndarray) -> np.ndarray | None:
    """Convolution of any strides, dilations and padding; None, left to JAX, for groups."""
    p = e.params
    if p["feature_group_count"] != 1 or p["batch_group_count"] != 1:
        return None
    numbers, space = p["dimension_numbers"], len(p["window_strides"])
    x, kernel = x.transpose(numbers.lhs_spec), kernel.transpose(numbers.rhs_spec)  # N C space, O C space
    around = [(low, high, step - 1) for (low, high), step in zip(p["padding"], p["lhs_dilation"], strict=True)]
    x = padded(x, 0.0, [(0, 0, 0), (0, 0, 0), *around])
    kernel = padded(kernel, 0.0, [(0, 0, 0), (0, 0, 0), *((0, 0, step - 1) for step in p["rhs_dilation"])])
    axes = tuple(range(2, 2 + space))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[2:], axis=axes)
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in p["window_strides"]))]
    result = np.tensordot(windows, kernel, ((1, *range(2 + space, 2 + 2 * space)), range(1, 2 + space)))
    return np.moveaxis(result, -1, 1).transpose(np.argsort(numbers.out_spec))


def padded(x: np.ndarray, value: Any, config: Sequence[Sequence[Any]]) -> np.ndarray:
    """`lax.pad`: entries before, after and between, along each axis; negative numbers cut off."""
    axes = list(zip(x.shape, config, strict=True))
    shape = [max(0, low + max(0, size + (size - 1) * between) + high) for size, (low, high, between) in axes]
    places = [low + (between + 1) * np.arange(size) for size, (low, _, between) in axes]
    inside = [np.flatnonzero((of >= 0) & (of < size)) for of, size in zip(places, shape, strict=True)]
    result = np.full(shape, value, x.dtype)
    result[np.ix_(*(of[some] for of, some in zip(places, inside, strict=True)))] = x[np.ix_(*inside)]
    return result


def broadcast_in_dim(e: Any, x: Any, *_: Any) -> Any:
    shape, axes = e.params["shape"], e.params["broadcast_dimensions"]
    return np.broadcast_to(np.expand_dims(x, [n for n in range(len(shape)) if n not in axes]), shape)


def converted(e: Any, x: np.ndarray) -> np.ndarray:
    """Integers and truth values in their type; floating point stays double, whatever its type."""
    dtype = e.params["new_dtype"]
    return x.astype(np.float64 if jnp.issubdtype(dtype, jnp.floating) else dtype)


def dynamic_update_slice(_: Any, x: np.ndarray, update: np.ndarray, *starts: Any) -> np.ndarray:
    x = x.copy()
    x[placed(x.shape, update.shape, starts)] = update
    return x


def entries(shape: Sequence[int], indices: np.ndarray, numbers: Any, sizes: Sequence[int]) -> Any:
    """Where a gather or scatter reads or writes: an index array per axis, batch axes first; None for JAX.

    `numbers` are the axes: those of slices that are dropped, and those that indices count. Left to JAX: batched axes,
    and indices outside of the array.
    """
    dropped, counted, batched = numbers
    if batched:
        return None
    batch, places = indices.shape[:-1], []
    kept = [n for n in range(len(shape)) if n not in dropped]
    for axis, size in enumerate(sizes):
        start = indices[..., counted.index(axis)] if axis in counted else np.zeros(batch, np.int64)
        if np.any(start < 0) or np.any(start > shape[axis] - size):
            return None
        offset = np.arange(size).reshape([size if n == axis else 1 for n in kept]) if axis in kept else 0
        places.append(start.astype(np.int64).reshape(*batch, *[1] * len(kept)) + offset)
    return tuple(places)


def gather(e: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    """Slices of an array that start at indices."""
    d, sizes = e.params["dimension_numbers"], e.params["slice_sizes"]
    numbers = d.collapsed_slice_dims, d.start_index_map, d.operand_batching_dims
    places = entries(x.shape, indices, numbers, sizes)
    if places is None:
        return None
    batch = indices.ndim - 1
    others = [n for n in range(batch + len(d.offset_dims)) if n not in d.offset_dims]
    order = np.argsort([*others, *d.offset_dims])
    return x[places].transpose(order)


def scatter_add(e: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray | None:
    """An array with updates added at indices."""
    d = e.params["dimension_numbers"]
    kept = [n for n in range(x.ndim) if n not in d.inserted_window_dims]
    window = dict(zip(kept, (updates.shape[n] for n in d.update_window_dims), strict=False))
    numbers = d.inserted_window_dims, d.scatter_dims_to_operand_dims, d.operand_batching_dims
    places = entries(x.shape, indices, numbers, [window.get(n, 1) for n in range(x.ndim)])
    if places is None:
        return None
    others = [n for n in range(updates.ndim) if n not in d.update_window_dims]
    x = x.copy()
    np.add.at(x, places, updates.transpose(*others, *d.update_window_dims))
    return x


def placed(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Any]) -> tuple[slice, ...]:
    """A slice of some sizes, moved inside the array where it would stick out."""
    first = [min(max(0, int(start)), n - size) for n, size, start in zip(shape, sizes, starts, strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(first, sizes, strict=True))


def sliced(e: Any, x: Any) -> Any:
    p = e.params
    strides = p["strides"] or (1,) * x.ndim
    return x[tuple(slice(*of) for of in zip(p["start_indices"], p["limit_indices"], strides, strict=True))]


def reshaped(e: Any, x: Any, *_: Any) -> Any:
    order = e.params["dimensions"]
    return (x if order is None else x.transpose(order)).reshape(e.params["new_sizes"])


def iota(e: Any, *_: Any) -> np.ndarray:
    shape, axis = e.params["shape"], e.params["dimension"]
    places = np.indices(shape, sparse=True)[axis]
    return widened(np.broadcast_to(places, shape).astype(e.params["dtype"]))


def over_axes(function: Callable) -> Callable:
    """A reduction over `axes`."""
    return lambda e, x: function(x, axis=tuple(e.params["axes"]))


def by_entry(function: Callable[[float], float]) -> Callable:
    """A function of numbers, for arrays: scipy.special takes longer to import than this of a self-check's arrays."""
    return lambda x: np.fromiter(map(function, x.ravel()), np.float64, x.size).reshape(x.shape)


SIMPLE: dict[str, Callable] = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "tanh", "exp", "exp2", "log", "log1p", "expm1")},
    **{name: getattr(np, name) for name in ("sqrt", "square", "abs", "sign", "floor", "ceil")},
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "add_any": np.add},
    **{"max": np.maximum, "min": np.minimum, "pow": np.power, "atan2": np.arctan2, "rem": np.fmod},
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater},
    **{"ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert},
    **{name: by_entry(getattr(math, name)) for name in ("erf", "erfc")},
    "is_finite": np.isfinite,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    **dict.fromkeys(("copy", "stop_gradient", "sharding_constraint"), lambda x: x),
    "select_n": lambda which, *cases: (  # `choose` takes twice the time
        np.where(which, *cases[::-1]) if len(cases) == 2 else np.choose(which, cases)
    ),
    "clamp": lambda low, x, high: np.clip(x, low, high),
}

RULES: dict[str, Callable] = {
    "dot_general": dot_general,
    "conv_general_dilated": conv_general_dilated,
    "broadcast_in_dim": broadcast_in_dim,
    "convert_element_type": converted,
    "dynamic_slice": lambda e, x, *starts: x[placed(x.shape, e.params["slice_sizes"], starts)],
    "dynamic_update_slice": dynamic_update_slice,
    "slice": sliced,
    "gather": gather,
    "scatter-add": scatter_add,
    "iota": iota,
    "reduce_sum": over_axes(np.sum),
    "reduce_max": over_axes(np.max),
    "reduce_min": over_axes(np.min),
    "reduce_prod": over_axes(np.prod),
    "reduce_and": over_axes(np.all),
    "reduce_or": over_axes(np.any),
    "argmax": lambda e, x: np.argmax(x, axis=e.params["axes"][0]).astype(e.params["index_dtype"]),
    "div": lambda e, x, y: x / y if jnp.issubdtype(e.outvars[0].aval.dtype, jnp.floating) else None,
    "integer_pow": lambda e, x: x ** e.params["y"] if e.params["y"] >= 0 else 1 / x ** -e.params["y"],
    "reshape": reshaped,
    "transpose": lambda e, x: x.transpose(e.params["permutation"]),
    "squeeze": lambda e, x: x.squeeze(tuple(e.params["dimensions"])),
    "concatenate": lambda e, *xs: np.concatenate(xs, axis=e.params["dimension"]),
    "stack": lambda e, *xs: np.stack(xs, axis=e.params["axis"]),
    "rev": lambda e, x: np.flip(x, tuple(e.params["dimensions"])),
    "pad": lambda e, x, value: padded(x, value, e.params["padding_config"]),
    "cumsum": lambda e, x: (
        np.flip(np.cumsum(np.flip(x, e.params["axis"]), e.params["axis"]), e.params["axis"])
        if e.params["reverse"]
        else np.cumsum(x, e.params["axis"])
    ),
    "split": lambda e, x: np.split(x, np.cumsum(e.params["sizes"])[:-1], axis=e.params["axis"]),
}
