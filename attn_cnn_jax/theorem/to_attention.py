"""Trained convolutions rewritten as attention (Theorem 1), one kernel or every kernel of a network."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from attn_cnn_jax.arrays import AnyArray, Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.convolutional import (
    ConvolutionalAttention,
    PaddedAttention,
    Padding,
    TableAttention,
    pads_for,
    window_of,
)
from attn_cnn_jax.models.encodings import Encoding, Quadratic
from attn_cnn_jax.models.encodings.table import NONE, ShiftTable
from attn_cnn_jax.models.initialisation import set_values
from attn_cnn_jax.models.layers import check_sizes
from attn_cnn_jax.theorem.kernels import over_patches, ungrouped
from attn_cnn_jax.theorem.rank import few_heads, heads_needed
from attn_cnn_jax.theorem.rope import rope_encoding, rope_sharpness

PerAxis = int | Sequence[int] | None  # one number, or one per axis; None is 1
Paddings = str | int | Sequence[int | Sequence[int]]  # a word, or zeros: one number, or before and after per axis


def conv_to_attention(
    kernel: AnyArray,
    bias: AnyArray | None = None,
    *,
    heads: int | np.integer | str | None = None,
    tolerance: float = 0.0,
    encoding: str = "quadratic",
    pairs: int = 1,
    grid: Grid | None = None,
    patch: int | None = None,
    groups: int = 1,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Paddings = "SAME",
    head_dim: int | None = None,
    sharpness: float = math.inf,
    dtype: DTypeLike | None = None,
) -> PaddedAttention:
    """Returns an attention layer with the output of a convolution (Theorem 1; Lemma 1 gives its value maps).

    Args:
      kernel: `(K_r, K_c, D_in, D_out)`, or `(K, D_in, D_out)` of a 1-D convolution; float32 or float64.
      bias: `(D_out,)`, or None for zeros.
      heads: None for one head per shift. "fewest": as few as the kernel needs up to `tolerance`, see `heads_needed`,
        each with a table of scores over shifts. A number: so many, the kernel as nearly as `few_heads` can.
      tolerance: for "fewest": relative error of the kernel in the Frobenius norm.
      encoding: "quadratic", or "rope": constant queries and keys and `pairs` frequencies per axis, for images of at
        most `grid` pixels, rows and columns (in 1-D, rows 1).
      patch: tokens are patches of so many pixels per side, `(b, H / patch, W / patch, patch^2 D_in)`; one head per
        neighbouring patch. Of convolutions with "SAME" padding and stride 1, see `over_patches`.
      groups: of input and output channels; the kernel then is `(K_r, K_c, D_in / groups, D_out)`.
      stride, dilation: in pixels; one number, or one per axis.
      padding: "SAME" or "VALID" as XLA understands them, or zeros: a number, or (before, after) per axis.
      head_dim: head size `D_h`. Below `min(D_in, D_out)` every head keeps the best approximation of its value map
        by rank `D_h` (a consequence of Lemma 1); `truncate` gives the error.
      sharpness: `alpha` of eq. 9, in one over squared pixels. Infinite: each head reads exactly its shift, or pattern.
        Finite: see `attn_cnn_jax.theorem.bounds` for the error, and for the alpha that a tolerance needs. With `heads`,
        minus the score outside the patterns (`table_bound`). With "rope", `beta` (`rope_bound`); infinite takes the one
        from which all attention elsewhere is less than rounding.
      dtype: of activations; that of the kernel by default.

    Returns:
      A layer: `(b, H, W, D_in) -> (b, H', W', D_out)`, or `(b, L, D_in) -> (b, L', D_out)` in 1-D.

    Raises:
      UserError: for shapes and numbers that are no convolution.
    """
    kernel = np.asarray(kernel)
    if kernel.ndim not in (3, 4) or not kernel.size or kernel.dtype not in (np.float32, np.float64):
        raise UserError(
            f"a kernel of shape {kernel.shape} and type {kernel.dtype}: allowed is (rows, columns, D_in, D_out) or "
            "(length, D_in, D_out), float32 or float64; layers attend over rows and columns, and for more axes "
            "heads_needed counts heads and few_heads makes their patterns"
        )
    if not np.isfinite(kernel).all():
        raise UserError("a kernel with entries that are infinite or no numbers: allowed are finite ones")
    num_axes = kernel.ndim - 2
    largest = float(jnp.finfo(kernel.dtype).max) / 4  # twice of it has to be a number
    if not (0 < sharpness <= largest or sharpness == math.inf):
        raise UserError(f"sharpness={sharpness!r}: allowed is a number above 0 up to {largest:.2g}, or math.inf")
    if head_dim is not None and head_dim < 1:
        raise UserError(f"head_dim={head_dim!r}: allowed is an integer from 1")
    kernel = ungrouped(kernel, groups)
    if bias is not None and np.shape(bias) != kernel.shape[-1:]:
        raise UserError(f"a bias of shape {np.shape(bias)}: this kernel needs ({kernel.shape[-1]},)")
    if encoding not in ("quadratic", "rope") or (encoding == "rope" and (grid is None or heads is not None)):
        raise UserError(
            f'encoding={encoding!r}: allowed are "quadratic", and "rope" with grid=(H, W) and without heads'
        )
    if grid is not None:
        grid = _by_axis("grid", grid, 2)
        check_sizes(pairs=pairs)
    if isinstance(heads, str) and heads != "fewest":
        raise UserError(f'heads={heads!r}: allowed is an integer from 1, or "fewest"')
    strides, dilations = _by_axis("stride", stride, num_axes), _by_axis("dilation", dilation, num_axes)
    pads = _padding(padding, num_axes)
    if patch is not None:
        if strides != (1, 1) or pads != "SAME":
            raise UserError('patch: allowed for convolutions of stride 1 and padding "SAME"')
        kernel, dilations = over_patches(kernel, patch, dilations), (1, 1)
        bias = None if bias is None else np.tile(bias, patch**2)
    kernel = kernel[None] if num_axes == 1 else kernel
    size, features = (kernel.shape[0], kernel.shape[1]), (kernel.shape[2], kernel.shape[3])
    borders = {"stride": strides, "dilation": dilations, "padding": pads, "num_axes": num_axes}
    dtype = kernel.dtype if dtype is None else dtype
    values, shifts = kernel.reshape(-1, *features), kernel_shifts(size, dilations)
    if encoding == "rope":
        assert grid is not None
        pads_of_grid = pads_for(pads, grid, window_of(size, dilations), strides)
        padded = grid[0] + sum(pads_of_grid[0]), grid[1] + sum(pads_of_grid[1])
        if math.isinf(sharpness):
            sharpness = rope_sharpness(float(jnp.finfo(dtype).eps) / 4, padded, pairs)
        position = rope_encoding(shifts, features[0], padded, beta=sharpness, pairs=pairs, dtype=dtype)
        attention = attention_of(position, len(shifts), features, head_dim, dtype)
        layer = PaddedAttention(attention, size, largest=padded, **borders)
    elif heads is not None:
        number = heads_needed(kernel, tolerance).enough if isinstance(heads, str) else heads
        patterns, values, _, _ = few_heads(kernel, number)
        position = table_encoding(patterns, shifts, sharpness, dtype)
        layer = TableAttention(attention_of(position, len(patterns), features, head_dim, dtype), size, **borders)
    else:
        common = borders | {"head_size": head_dim, "sharpness": sharpness, "dtype": dtype}
        layer = nnx.eval_shape(lambda: ConvolutionalAttention(*features, size, **common, rngs=nnx.Rngs(0)))
        assert isinstance(layer.attention.position, Quadratic)
        layer.attention.position.start_on_grid(shifts, sharpness)
    set_values(layer.attention, values)
    if bias is not None:
        layer.attention.output.bias = nnx.Param(jnp.asarray(bias, layer.attention.output.kernel.dtype))
    return layer


def attention_of(
    position: Encoding, num_heads: int, features: tuple[int, int], head_dim: int | None, dtype: DTypeLike
) -> SelfAttention:
    """Attention by an encoding, `(b, H, W, D_in) -> (b, H, W, D_out)`, whose maps have shapes and no values yet."""
    sizes = {"num_heads": num_heads, "hidden_size": features[0], "output_size": features[1], "dtype": dtype}
    head_size = min(features) if head_dim is None else head_dim
    attention = nnx.eval_shape(lambda: SelfAttention(position, head_size=head_size, **sizes, rngs=nnx.Rngs(0)))
    attention.position = position
    return attention


def table_encoding(
    patterns: Float[np.ndarray, "h s"], shifts: Int[np.ndarray, "s 2"], sharpness: float, dtype: DTypeLike
) -> ShiftTable:
    """Scores that are the logarithms of patterns over shifts, `-sharpness` elsewhere."""
    outside = max(NONE, -sharpness)
    reach = np.abs(shifts).max(axis=0)
    score = np.full((len(patterns), *(2 * reach + 1)), outside)
    score[:, *(shifts + reach).T] = np.log(patterns, out=np.full_like(patterns, outside), where=patterns > 0)
    return ShiftTable(score, outside, dtype=dtype)


def convolutions_to_attention(
    model: nnx.Module,
    sharpness: float = math.inf,
    *,
    heads: int | np.integer | str | None = None,
    tolerance: float = 0.0,
) -> Any:
    """Returns a copy of a network in which every convolution is attention; the rest, such as batch norm, stays.

    What is one layer or one parameter in several places stays one. The model is any Flax network with `nnx.Conv`
    layers, none of them transposed, or one such layer. `sharpness`, `heads` and `tolerance` as in `conv_to_attention`.
    """
    layers: dict[nnx.Conv, PaddedAttention] = {}
    parameters: dict[int, Any] = {}  # of attention, by the parameter of the convolution

    def converted(node: Any) -> Any:
        if not isinstance(node, nnx.Conv):
            return node
        if node not in layers:
            layers[node] = layer_to_attention(node, sharpness, heads=heads, tolerance=tolerance)
            output = layers[node].attention.output
            output.kernel = parameters.setdefault(id(node.kernel), output.kernel)
            if node.bias is not None:
                output.bias = parameters.setdefault(id(node.bias), output.bias)
        return layers[node]

    def is_leaf(node: Any) -> bool:
        return isinstance(node, nnx.Module | nnx.Variable)

    if not isinstance(model, nnx.Module):
        raise UserError(
            f"{type(model).__name__} is no Flax NNX network: allowed is an nnx.Module, Linen's are not read"
        )
    modules = [module for _, module in nnx.iter_modules(model)]
    if any(isinstance(module, nnx.ConvTranspose) for module in modules):
        raise UserError("a transposed convolution: only plain ones, nnx.Conv, become attention")
    if not any(isinstance(module, nnx.Conv) for module in modules):
        raise UserError(f"{type(model).__name__} has no nnx.Conv layer: nothing would become attention")
    model = nnx.clone(model)
    for _, module in list(nnx.iter_modules(model)):
        for name, child in list(vars(module).items()):
            if isinstance(child, nnx.Conv | tuple | list | dict):
                setattr(module, name, jax.tree.map(converted, child, is_leaf=is_leaf))
    return converted(model)


def layer_to_attention(
    layer: nnx.Conv, sharpness: float = math.inf, *, heads: int | np.integer | str | None = None, tolerance: float = 0.0
) -> PaddedAttention:
    """Returns `conv_to_attention` of a Flax layer, its kernel with its mask."""
    if type(layer).__call__ is not nnx.Conv.__call__:
        raise UserError(
            f"a {type(layer).__name__}: of subclasses of nnx.Conv, allowed are those that compute as it does"
        )
    if np.any(np.asarray(layer.input_dilation) != 1):
        raise UserError(f"a convolution of input dilation {layer.input_dilation}: only those of 1 become attention")
    kernel = np.asarray(layer.kernel[...])
    return conv_to_attention(
        kernel if layer.mask is None else kernel * np.asarray(layer.mask, kernel.dtype),
        None if layer.bias is None else np.asarray(layer.bias[...]),
        heads=heads,
        tolerance=tolerance,
        groups=layer.feature_group_count,
        stride=layer.strides,
        dilation=layer.kernel_dilation,
        padding=layer.padding,
        sharpness=sharpness,
        dtype=layer.dtype,
    )


def _by_axis(name: str, value: PerAxis, num_axes: int) -> tuple[int, int]:
    """Returns one positive integer for rows and one for columns; 1-D layers have one row."""
    values = tuple(value) if isinstance(value, Sequence | np.ndarray) else (value,) * num_axes
    values = tuple(1 if item is None else item for item in values)
    if len(values) != num_axes or not all(isinstance(item, int | np.integer) and item >= 1 for item in values):
        raise UserError(f"{name}={value!r}: allowed is an integer from 1, or {num_axes} of them")
    rows, columns = (1, *values)[-2:]
    return int(rows), int(columns)


def _padding(padding: Paddings, num_axes: int) -> Padding:
    """Returns zeros before and after the rows and the columns, or one of the words "SAME" and "VALID"."""
    if isinstance(padding, str) and padding.upper() in ("SAME", "VALID"):
        return padding.upper()
    if not isinstance(padding, str):
        pairs = list(padding) if isinstance(padding, Sequence | np.ndarray) else [padding] * num_axes
        pairs = [tuple(pair) if isinstance(pair, Sequence | np.ndarray) else (pair, pair) for pair in pairs]
        numbers = all(isinstance(n, int | np.integer) and n >= 0 for pair in pairs for n in pair)
        if numbers and len(pairs) == num_axes and all(len(pair) == 2 for pair in pairs):
            rows, columns = [(0, 0), *pairs][-2:]
            return (int(rows[0]), int(rows[1])), (int(columns[0]), int(columns[1]))
    raise UserError(f'padding={padding!r}: allowed is "SAME", "VALID", an integer from 0, or (before, after) per axis')
