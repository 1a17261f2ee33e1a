"""Attention of PyTorch networks: timm's, torchvision's, Hugging Face's, or one's own.

Every function that a network calls passes through a `TorchFunctionMode`, in which three kinds are attention:
`scaled_dot_product_attention`; `nn.MultiheadAttention`'s function; and the product of a square matrix per head whose
rows sum to one with values, as networks write that compute the softmax themselves (ConViT, "eager").
"""

from __future__ import annotations  # the documentation reads this module without PyTorch

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.watch import CLOSE, Product, Replace, Watched, product

PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def watch(model: torch.nn.Module, images: Any, replace: Replace | None = None) -> Watched:
    """Runs a network on `(b, C, H, W)` images; see `instrument.networks.watch`."""
    images = images if isinstance(images, torch.Tensor) else torch.from_numpy(np.array(images))
    training = model.training
    recorder = Recorder(len(images), replace)
    try:
        model.eval()
        with torch.no_grad(), recorder:
            output = model(images)
    finally:
        model.train(training)
    return Watched(flattened(output), recorder.layers)


def flattened(output: Any) -> np.ndarray:
    """Returns the logits of what a network returns, or else its first array."""
    if not isinstance(output, torch.Tensor):
        output = getattr(output, "logits", None) if hasattr(output, "logits") else output[0]
    return output.float().numpy(force=True).reshape(len(output), -1)


class Recorder(TorchFunctionMode):
    """Records every layer's attention, and replaces it.

    Attributes:
      layers: what was recorded.
    """

    def __init__(self, images: int, replace: Replace | None):
        super().__init__()
        self.images, self.replace = images, replace
        self.layers: list[Product] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            attention, values = scaled_dot_product(*args, **kwargs)
            return self.record(attention, values, func(*args, **kwargs))
        if func is functional.multi_head_attention_forward:
            return self.multi_head(func, args, kwargs)
        result = func(*args, **kwargs)
        if func in PRODUCTS and len(args) == 2 and is_attention(args[0], args[1]):
            return self.record(args[0], args[1], result)
        return result

    def record(self, attention: torch.Tensor, values: torch.Tensor, averages: torch.Tensor) -> torch.Tensor:
        """Returns the averages of the values, by the attention that replaces the network's."""
        if len(attention) != self.images:
            raise UserError(
                f"attention over {len(attention)} windows of {attention.shape[-1]} tokens in {self.images} images: "
                "windowed attention (Swin) is not over one grid, and is not supported"
            )
        seen = product(*(array.float().numpy(force=True) for array in (attention, values, averages)))
        self.layers.append(seen)
        if self.replace is None:
            return averages
        given = torch.from_numpy(self.replace(len(self.layers) - 1, seen.attention)).to(values)
        return given @ values

    def multi_head(self, func: Any, args: tuple, kwargs: dict) -> tuple[torch.Tensor, None]:
        """`nn.MultiheadAttention` of a sequence with itself, `(n, b, d)`, by its own weights."""
        names = ("query", "key", "value", "embed_dim", "heads", "weight", "bias", "_k", "_v", "_zero", "_drop", "out_w")
        given = dict(zip((*names, "out_b"), args, strict=False))
        x, heads = given["query"], given["heads"]
        expected = func(*args, **kwargs | {"need_weights": False, "training": False})[0]
        tokens, images, _ = x.shape
        projected = functional.linear(x, given["weight"], given["bias"]).reshape(tokens, images, 3, heads, -1)
        query, key, value = projected.permute(2, 1, 3, 0, 4)
        attention, _ = scaled_dot_product(query, key, value)
        averages = self.record(attention, value, attention @ value)
        flat = averages.permute(2, 0, 1, 3).reshape(tokens, images, -1)
        output = functional.linear(flat, given["out_w"], given["out_b"])
        if self.replace is None and not torch.allclose(output, expected, atol=1e-4):
            raise UserError("an nn.MultiheadAttention with masks, or of another sequence, is not supported")
        return output, None


def scaled_dot_product(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns attention and values of `scaled_dot_product_attention`, without dropout; a mask may be a bias."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if masked else scores + attn_mask
    return scores.softmax(dim=-1), value


def is_attention(a: Any, b: Any) -> bool:
    """Whether a product is that of attention, a square matrix per head whose rows sum to one, with values."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.ndim == b.ndim == 4):
        return False
    if a.shape[-1] != a.shape[-2] or a.shape[-1] != b.shape[-2] or not a.is_floating_point():
        return False
    return bool((a >= 0).all()) and bool((a.float().sum(dim=-1) - 1).abs().max() < CLOSE)
