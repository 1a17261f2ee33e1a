"""Attention of PyTorch networks: timm's, torchvision's, Hugging Face's, or one's own.

Every function that a network calls passes through a `TorchFunctionMode`, in which three kinds are attention:
`scaled_dot_product_attention`; `nn.MultiheadAttention`'s function; and the product of a square matrix per head whose
rows sum to one with values, as networks write that compute the softmax themselves (ConViT, "eager").
"""

from __future__ import annotations  # the documentation reads this module without PyTorch

from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import CLOSE, Product, Replace, Watched, product

PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def watch(model: torch.nn.Module, images: Any, replace: Replace | None = None) -> Watched:
    """Runs a network on `(b, C, H, W)` images; see `instrument.attention.watch`."""
    images = images if isinstance(images, torch.Tensor) else torch.from_numpy(np.array(images))
    training, recorder = model.training, Recorder(replace)
    try:
        model.eval()
        with torch.no_grad(), recorder:
            output = model(images)
    finally:
        model.train(training)
    if not isinstance(output, torch.Tensor):
        output = output.logits if hasattr(output, "logits") else output[0]
    return output.float().numpy(force=True).reshape(len(output), -1), recorder.layers


class Recorder(TorchFunctionMode):
    """Records every layer's attention in `layers`, and replaces it."""

    def __init__(self, replace: Replace | None):
        super().__init__()
        self.replace, self.layers = replace, list[Product]()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self.fused(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self.multi_head(*args, **kwargs)
        result = func(*args, **kwargs)
        return self.record(args[0], args[1], result) if func in PRODUCTS and is_attention(args) else result

    def record(self, attention: torch.Tensor, values: torch.Tensor, averages: torch.Tensor) -> torch.Tensor:
        """Returns the averages of the values, by the attention that replaces the network's."""
        self.layers.append(product(*(array.float().numpy(force=True) for array in (attention, values, averages))))
        if self.replace is None:
            return averages
        given = self.replace(len(self.layers) - 1, self.layers[-1].attention)
        return torch.from_numpy(given).to(values) @ values

    def fused(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        """`scaled_dot_product_attention` `(b, h, n, c)`; its averages of one-hot values are its attention."""
        one_hot = torch.eye(value.shape[-2]).to(value).expand(*value.shape[:-1], -1)
        attention, averages = (
            functional.scaled_dot_product_attention(query, key, values, *args, **kwargs) for values in (one_hot, value)
        )
        return self.record(attention, value.repeat_interleave(query.shape[-3] // value.shape[-3], -3), averages)

    def multi_head(self, x: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, None]:
        """`nn.MultiheadAttention` of a sequence with itself, `(n, b, d)`, by its own weights."""
        kwargs |= {"need_weights": False, "training": False}
        expected, _ = functional.multi_head_attention_forward(x, *args, **kwargs)
        heads, weight, bias, out_weight, out_bias = (args[n] for n in (3, 4, 5, 10, 11))
        projected = functional.linear(x, weight, bias).reshape(*x.shape[:2], 3, heads, -1)
        query, key, value = projected.permute(2, 1, 3, 0, 4)
        averages = self.fused(query, key, value)
        output = functional.linear(averages.permute(2, 0, 1, 3).flatten(2), out_weight, out_bias)
        if self.replace is None and not torch.allclose(output, expected, atol=1e-4):
            raise UserError("an nn.MultiheadAttention with masks, or of another sequence, is not supported")
        return output, None


def is_attention(arguments: tuple) -> bool:
    """Whether a product is that of attention, a square matrix per head whose rows sum to one, with values."""
    if not all(isinstance(x, torch.Tensor) and x.ndim == 4 for x in arguments) or len(arguments) != 2:
        return False
    a, b = arguments
    if a.shape[-1] != a.shape[-2] or a.shape[-1] != b.shape[-2] or not a.is_floating_point():
        return False
    return bool((a >= 0).all()) and bool((a.float().sum(dim=-1) - 1).abs().max() < CLOSE)
