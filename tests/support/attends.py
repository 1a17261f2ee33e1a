"""Ways in which small networks of PyTorch attend, `(b, h, n, c)` each, and what they put among their tokens."""

from tests.instrument.conftest import HEADS, D


def fused(query, key, value):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def einsum(query, key, value):
    import torch

    weights = (torch.einsum("bhqc,bhkc->bhqk", query, key) / 2).softmax(dim=-1)
    return torch.einsum("bhqk,bhkc->bhqc", [weights, value])  # operands of einsum may be a list


def heads_with_images(query, key, value):
    import torch

    query, key, value = (x.flatten(0, 1) for x in (query, key, value))
    return torch.bmm((query @ key.mT / 2).softmax(dim=-1), value).unflatten(0, (-1, HEADS))


def transposed(query, key, value):
    """As EfficientViT multiplies them, channels before tokens."""
    return (value.mT @ (query @ key.mT / 2).softmax(dim=-1).mT).mT


def heads_before_images(query, key, value):
    return fused(*(x.transpose(0, 1) for x in (query, key, value))).transpose(0, 1)


def other_queries(query, key, value):
    """Keys of one sequence, in another order than the queries of the other."""
    count = key.shape[2] // 2
    return fused(query, key.roll(count, 2), value.roll(count, 2))


def keys_first(query, key, value):
    import torch

    return torch.einsum("bhkc,bkhq->bhqc", value, (key @ query.mT / 2).softmax(2).transpose(1, 2))


def cast(query, key, value):
    """As libraries cast a softmax, in an order of its own."""
    import torch

    weights = (query @ key.mT / 2).softmax(dim=-1)
    return torch.einsum("bqhk,bhkc->bhqc", weights.transpose(1, 2).double().contiguous(), value.double()).float()


def channels(query, key, value):
    weights = (query.mT @ key / 8).softmax(dim=-1)
    return (weights @ value.mT).mT


def summed(query, key, value):
    """Without a product: no function that is called has both attention and values."""
    return ((query @ key.mT / 2).softmax(dim=-1)[..., None] * value[:, :, None]).sum(dim=3)


def between_tokens(x):
    """Two tokens after the patches, and one before."""
    import torch

    return torch.cat([torch.ones(len(x), 1, D), x, -torch.ones(len(x), 2, D)], dim=1)


def shuffled(x):
    import torch

    order = torch.rand(len(x), x.shape[1], 1).argsort(dim=1)
    return x.gather(1, order.expand_as(x))


def stem(torch, layers=3):
    """Convolutions with a stride of two, whose patches overlap."""
    nn = torch.nn
    convolutions = [nn.Conv2d(D if n else 3, D, 3, 2, 1) for n in range(layers)]
    return nn.Sequential(*(layer for convolution in convolutions for layer in (convolution, nn.GELU())))
