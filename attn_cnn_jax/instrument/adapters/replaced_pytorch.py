"""A PyTorch network some of whose heads are depth-wise convolutions of their values, for good."""

from __future__ import annotations  # the documentation reads this module without PyTorch

import copy
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]
from torch.overrides import TorchFunctionMode  # pyright: ignore[reportMissingImports]

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import Replacement
from attn_cnn_jax.instrument.adapters.pytorch import FUSED, MAY_ATTEND, probabilities
from attn_cnn_jax.theorem.to_convolution import kernel_axis


class Convolved(nn.Module):
    """Heads of one layer: values `(b, n, p, c)` of their patches to the same, by a kernel per head."""

    def __init__(self, replacement: Replacement):
        super().__init__()
        self.grid, self.heads, self.tokens = replacement.grid, [*replacement.heads], [*replacement.tokens]
        weights = torch.tensor(replacement.weights, dtype=torch.float32)
        axes = [kernel_axis(size) for size in weights.shape[1:]]
        self.padding = [int(x) for axis in axes[::-1] for x in (-axis[0], axis[-1])]
        self.weights = nn.Parameter(weights[:, None])
        self.register_buffer("repeated", torch.tensor(replacement.repeated)[:, None, None, None])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        images, count, _, channels = values.shape
        x = values.transpose(-2, -1).reshape(images, -1, *self.grid)
        weights = self.weights.to(values.dtype)
        by_channel = weights.repeat_interleave(channels, dim=0)
        repeated = functional.conv2d(functional.pad(x, self.padding, "replicate"), by_channel, groups=len(by_channel))
        cut = functional.conv2d(functional.pad(x, self.padding), by_channel, groups=len(by_channel))
        inside = functional.pad(torch.ones_like(x[:1, :1]), self.padding)
        inside = functional.conv2d(inside, weights).clamp(min=1e-30)[:, :, None]
        shape = images, count, channels, *self.grid
        chosen: Any = self.repeated
        averages = torch.where(chosen, repeated.reshape(shape), cut.reshape(shape) / inside)
        return averages.flatten(3).transpose(-2, -1)


class Replaced(nn.Module):
    """The user's network with heads replaced; `model` is the copy, `convolutions` are by the place of their layer."""

    def __init__(self, model: nn.Module, replacements: dict[int, Replacement]):
        super().__init__()
        self.model = copy.deepcopy(model).eval()
        self.convolutions = nn.ModuleDict({str(place): Convolved(of) for place, of in replacements.items()})
        self.convolutions.to(next(iter(model.parameters())).device)

    def forward(self, *images: Any, **options: Any) -> Any:
        with Replacing(self.convolutions):
            return self.model(*images, **options)


class Replacing(TorchFunctionMode):
    """Counts the functions that may be products with values, and replaces heads in those at known places."""

    def __init__(self, convolutions: nn.ModuleDict):
        super().__init__()
        self.convolutions, self.place = convolutions, -1

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.place += func in MAY_ATTEND
        name = str(self.place)
        if func not in MAY_ATTEND or name not in self.convolutions:
            return func(*args, **kwargs)
        convolved: Any = self.convolutions[name]
        if func is FUSED:
            return self.fused(convolved, *args, **kwargs)
        if func is functional.multi_head_attention_forward:
            kwargs |= {"training": False, "need_weights": False}
            functional.scaled_dot_product_attention = lambda *own, **options: self.fused(convolved, *own, **options)
            try:
                return func(*args, **kwargs)
            finally:
                functional.scaled_dot_product_attention = FUSED
        if func is torch.einsum or args[0].ndim != 4 or args[0].shape[-1] != args[0].shape[-2]:
            what = "that einsum averages, that are an axis of images, or whose map is transposed"
            raise UserError(f"heads {what}, cannot be replaced for good")
        return replaced(convolved, args[0][:, convolved.heads], args[1], func(*args, **kwargs))

    def fused(
        self, convolved, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **options
    ):
        """`scaled_dot_product_attention`: scores of replaced heads are computed where tokens are no patches alone."""
        if options.get("enable_gqa"):
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        if value.ndim != 4 or is_causal:
            raise UserError("only heads of attention (b, h, n, c) without a causal mask can be replaced for good")
        heads, others = convolved.heads, [h for h in range(query.shape[1]) if h not in convolved.heads]

        def mask(of):
            if attn_mask is None or attn_mask.ndim < 3 or attn_mask.shape[-3] == 1:
                return attn_mask
            return attn_mask[..., of, :, :]

        own = value.new_zeros(*query.shape[:-1], value.shape[-1])
        if others:
            kept = FUSED(*(x[:, others] for x in (query, key, value)), attn_mask=mask(others), scale=scale)
            own = put(own, 1, others, kept)
        attention = None
        if len(convolved.tokens) < value.shape[2]:
            attention = probabilities(query[:, heads], key[:, heads], mask(heads), scale)
            own = put(own, 1, heads, attention @ value[:, heads])
        return replaced(convolved, attention, value, own)


def replaced(convolved: Any, attention: Any, value: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Averages `own` with heads replaced: of patches by convolution; `attention` is needed where there are others."""
    tokens, heads = convolved.tokens, convolved.heads
    value = value.expand(*own.shape[:2], *value.shape[2:])[:, heads]
    averages = convolved(value[:, :, tokens])
    if rest := np.setdiff1d(np.arange(value.shape[2]), tokens).tolist():
        shares = attention[:, :, tokens]
        averages = shares[..., tokens].sum(dim=-1, keepdim=True) * averages + shares[..., rest] @ value[:, :, rest]
    return put(own, 1, heads, put(own[:, heads], 2, tokens, averages))


def put(array: torch.Tensor, axis: int, places: list[int], part: torch.Tensor) -> torch.Tensor:
    """A copy with a part along an axis replaced: unlike an assignment, exporters to ONNX compute it right."""
    return array.index_copy(axis, torch.tensor(places, device=array.device), part)
