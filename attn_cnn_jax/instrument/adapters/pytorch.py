"""Attention of PyTorch networks: timm's, torchvision's, Hugging Face's, or one's own.

Every function that a network calls passes through a `TorchFunctionMode`, in which three kinds are attention:
`scaled_dot_product_attention`; `nn.MultiheadAttention`'s function, which calls it; and the product, by `matmul`, `bmm`
or `einsum`, of a matrix per head whose rows sum to one with values, as networks write that compute the softmax
themselves (ConViT, "eager"). A softmax that none of them follows is listed.
"""

from __future__ import annotations  # the documentation reads this module without PyTorch

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]
from torch.overrides import TorchFunctionMode  # pyright: ignore[reportMissingImports]

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.adapters import CLOSE, HALF, LOCAL, Call, Seen, Softmax, Visit, absorb, difference, numbers

PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm)
FUSED = functional.scaled_dot_product_attention
MAY_ATTEND = {FUSED, functional.multi_head_attention_forward, torch.einsum, *PRODUCTS}
SOFTMAXES = (functional.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax)
LOGARITHMS = (functional.log_softmax, torch.log_softmax, torch.Tensor.log_softmax, torch.special.log_softmax)


def run(model: torch.nn.Module, images: torch.Tensor, visit: Visit) -> Seen:
    """Runs a network on images as it takes them; see the contract in adapters/__init__.py."""
    training = {module: module.training for module in model.modules()}
    watching = Watching(visit)
    try:
        model.eval()
        with torch.no_grad(), watching:
            output = model(images)
        if watching.hidden:
            raise UserError(
                f"{type(model).__name__} calls flex_attention, which shows no attention: choose another form"
            )
    finally:
        for module, was in training.items():
            module.training = was
    return Seen(output, watching.unseen)


class Watching(TorchFunctionMode):
    """Shows every product to the visitor, and uses what it returns."""

    def __init__(self, visit: Visit):
        super().__init__()
        self.visit, self.calls, self.place, self.unseen = visit, 0, -1, list[Softmax]()
        self.hidden = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.place += func in MAY_ATTEND
        self.hidden |= func is getattr(torch.ops.higher_order, "flex_attention", None)
        if func is FUSED:
            return self.fused(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self.multi_head(*args, **kwargs)
        if func is torch.einsum:
            return self.einsum(*args)
        result = func(*args, **kwargs)
        if func in SOFTMAXES or func in LOGARITHMS:
            rows = (result if func in SOFTMAXES else result.exp()).movedim(axis_of(*args, **kwargs), -1)
            if is_attention(rows):
                self.unseen.append(Softmax(self.calls, rows))
        if func in PRODUCTS and len(args) == 2 and args[0].ndim == args[1].ndim > 2:
            if is_attention(args[0]):
                return self.product(args[0], args[1], result, func.__name__)
            if is_attention(args[1].mT):  # EfficientViT multiplies values, channels first, with the transpose
                return self.product(args[1].mT, args[0].mT, result.mT, func.__name__).mT
        return result

    def product(self, attention: torch.Tensor, values: torch.Tensor, own: torch.Tensor, kind: str) -> torch.Tensor:
        """Averages `(..., q, c)` of values by attention `(..., h, q, p)`; which axes are heads, experiment.py finds."""
        absorb(self.unseen, attention)
        return self.show(kind, lambda: attention, values, lambda: own, own.shape)

    def show(
        self, kind: str, attention: Callable[[], Any], values: torch.Tensor, own: Callable[[], Any], shape: Any
    ) -> torch.Tensor:
        """Shows a call; returns the averages `(..., h, q, c)` of the values `(..., h, p, c)` by the attention to use.

        The network's own averages have that shape; they, and its attention, are made when they are asked for. Calls
        have four axes: one of heads is added where there is none, and axes of windows join that of images.
        """
        heads = shape[-3] if len(shape) > 3 else 1
        flat = math.prod(shape[:-2]) // heads, heads

        def four(array: torch.Tensor) -> torch.Tensor:
            return array.expand(*shape[:-2], *array.shape[-2:]).reshape(*flat, *array.shape[-2:])

        values = values if len(shape) == 4 else four(values)  # of four axes heads may share them
        whole = functools.cache(lambda: four(attention()))
        averages = functools.cache(own)

        again = functools.cache(lambda: numbers(whole().float() @ values.float()))

        count = *flat, shape[-2], values.shape[-2]
        exact = values.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(values.device.type)
        arrays = (lambda: numbers(whole())), (lambda: numbers(values)), again
        proof = lambda: difference(again(), numbers(four(averages())))  # noqa: E731
        call = Call(self.calls, kind, count, *arrays, proof, exact, self.place)
        self.calls += 1
        if (used := self.visit(call)) is None:
            return averages()
        if isinstance(used, str):
            local = used == LOCAL and count[2] == count[3]
            kept = values.expand(*flat, -1, -1) if local else values.new_zeros(*flat, *shape[-2:])
            return kept.reshape(shape)
        return (torch.from_numpy(np.ascontiguousarray(used)).to(values) @ values).reshape(shape)

    def fused(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        """`scaled_dot_product_attention` `(..., n, c)`."""
        if dropout_p > 0:
            raise UserError(f"scaled_dot_product_attention(dropout_p={dropout_p}) in evaluation: the network is random")
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale}
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        shape = (*torch.broadcast_shapes(query.shape[:-2], value.shape[:-2]), query.shape[-2], value.shape[-1])

        def own():
            return FUSED(query, key, value, **options)

        def attention():
            causal = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
            return probabilities(query.float(), key.float(), causal if is_causal else attn_mask, scale)

        return self.show("scaled_dot_product_attention", attention, value, own, shape)

    def multi_head(self, query, key, value, *args, **kwargs):
        """`nn.MultiheadAttention`'s function, whose averages are those of `scaled_dot_product_attention`."""
        wanted = kwargs.get("need_weights", True)
        kwargs |= {"training": False}
        weights = functional.multi_head_attention_forward(query, key, value, *args, **kwargs)[1] if wanted else None
        functional.scaled_dot_product_attention = self.fused  # nobody else can see its own call
        try:
            kwargs["need_weights"] = False
            output, _ = functional.multi_head_attention_forward(query, key, value, *args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = FUSED
        return output, weights

    def einsum(self, equation, *operands):
        """Any `einsum` of attention `bhqk` with values, whatever the order of their axes."""
        operands = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
        own = torch.einsum(equation, *operands)
        if not isinstance(equation, str) or len(operands) != 2 or "." in equation or "->" not in equation:
            return own
        of, to = equation.replace(" ", "").split("->")
        sides = list(zip(of.split(","), operands, strict=True))
        for (a, first), (b, second) in (sides, sides[::-1]):
            keys = "".join(axis for axis in a if axis in b and axis not in to)
            shared = "".join(axis for axis in a if axis in b and axis in to)
            free, channels = ("".join(axis for axis in x if axis not in shared + keys) for x in (a, b))
            if not len(keys) == len(free) == len(channels) == 1:
                continue
            attention = torch.einsum(f"{a}->{shared}{free}{keys}", first)
            if not is_attention(attention):
                continue
            absorb(self.unseen, first)
            values = torch.einsum(f"{b}->{shared}{keys}{channels}", second)
            averages = torch.einsum(f"{to}->{shared}{free}{channels}", own)
            used = self.show("einsum", lambda x=attention: x, values, lambda x=averages: x, averages.shape)
            return torch.einsum(f"{shared}{free}{channels}->{to}", used)
        return own


def axis_of(*args: Any, dim: int = -1, **_: Any) -> int:
    """The axis over which a softmax of such arguments sums to one."""
    return args[1] if len(args) > 1 else dim


def probabilities(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """The attention of `scaled_dot_product_attention`, which gives queries without keys zeros."""
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
    nothing = None
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        nothing = scores.amax(dim=-1, keepdim=True) == -torch.inf
    # In place where that may be: a layer of ViT-B at 518 pixels has half a gigabyte.
    found = torch.softmax(scores, -1, out=None if torch.is_grad_enabled() else scores)
    return found if nothing is None else found.masked_fill(nothing, 0)


def is_attention(a: Any) -> bool:
    """Whether an array is a matrix per head whose rows are not negative and sum to one."""
    if not isinstance(a, torch.Tensor) or a.ndim < 3 or not a.is_floating_point() or a.shape[-1] < 2:
        return False
    close = CLOSE if a.dtype in (torch.float32, torch.float64) else HALF
    return bool((a >= 0).all()) and bool((a.float().sum(dim=-1) - 1).abs().max() < close)
