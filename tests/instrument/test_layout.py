"""Where patches are: small networks of each kind, whose layouts are known, and those that have none."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.instrument.layout import arranged

pytestmark = pytest.mark.torch
D, HEADS = 12, 3


@pytest.fixture(scope="module")
def network(torch):
    """Makes networks of patches of 4x4 pixels: `tokens` puts others among patches, `attend` is how layers attend."""
    from torch import nn

    class Network(nn.Module):
        def __init__(self, attend, tokens=lambda x: x, output=lambda x: x.mean(dim=1)):
            super().__init__()
            self.patches, self.qkv, self.head = nn.Conv2d(3, D, 4, 4), nn.Linear(D, 3 * D), nn.Linear(D, 5)
            self.attend, self.tokens, self.output = attend, tokens, output

        def forward(self, x):
            x = self.tokens(self.patches(x).flatten(2).transpose(1, 2))
            for _ in range(2):
                parts = self.qkv(x).reshape(len(x), -1, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
                x = x + self.attend(*parts).transpose(1, 2).flatten(2)
            return self.output(self.head(x))

    return Network


def fused(query, key, value):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def einsum(query, key, value):
    import torch

    weights = (torch.einsum("bhqc,bhkc->bhqk", query, key) / 2).softmax(dim=-1)
    return torch.einsum("bhqk,bhkc->bhqc", weights, value)


def heads_with_images(query, key, value):
    import torch

    query, key, value = (x.flatten(0, 1) for x in (query, key, value))
    return torch.bmm((query @ key.mT / 2).softmax(dim=-1), value).unflatten(0, (-1, HEADS))


def windows(query, key, value):
    """Windows of 4x4 patches of 8x8, moved by two, of which parts that do not touch are masked."""
    import torch

    def cut(x):
        x = x.unflatten(2, (8, 8)).roll((-2, -2), (2, 3)).unflatten(2, (2, 4)).unflatten(4, (2, 4))
        return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)

    part = torch.tensor([0] * 4 + [1] * 2 + [2] * 2)
    part = (3 * part[:, None] + part).reshape(1, 1, 64, 1)
    mask = torch.where(cut(part) == cut(part).mT, 0.0, -100.0)
    weights = cut(query) @ cut(key).mT / 2 + mask.repeat(len(query), 1, 1, 1)
    x = (weights.softmax(dim=-1) @ cut(value)).unflatten(0, (-1, 2, 2)).unflatten(4, (4, 4))
    return x.permute(0, 3, 1, 4, 2, 5, 6).flatten(2, 3).flatten(3, 4).roll((2, 2), (2, 3)).flatten(2, 3)


def channels(query, key, value):
    weights = (query.mT @ key / 8).softmax(dim=-1)
    return (weights @ value.mT).mT


def between_tokens(x):
    """Two tokens after the patches, and one before."""
    import torch

    return torch.cat([torch.ones(len(x), 1, D), x, -torch.ones(len(x), 2, D)], dim=1)


def shuffled(x):
    import torch

    order = torch.rand(len(x), x.shape[1], 1).argsort(dim=1)
    return x.gather(1, order.expand_as(x))


@pytest.mark.parametrize("attend", [fused, einsum, heads_with_images])
def test_grids_and_other_tokens_are_found(attend, network, torch):
    model = network(attend, between_tokens).eval()
    report = inspect(model, torch.randn(2, 3, 12, 20), kernel_size=(3, 5))
    assert report.grids == [(3, 5)] * 2
    assert report.layers_measured[0].layout.others.tolist() == [0, 16, 17]
    assert [layer.shape for layer in report.attention] == [(2, HEADS, 15, 15)] * 2
    assert max(report.differences) < 1e-5
    assert report.curve([0, 6], instead="uniform")[1]["logits"] > 0


def test_windows_are_grids_of_their_own_and_parts_that_do_not_touch_are_masked(network, torch):
    report = inspect(network(windows), torch.randn(2, 3, 32, 32))
    layout = report.layers_measured[0].layout
    assert (layout.grid, layout.windows) == ((4, 4), 4)
    assert [len(np.unique(region)) for region in layout.region] == [1, 2, 2, 4]
    masked = np.where(layout.region[:, :, None] == layout.region[:, None], 0, report.anatomies[0].mean.mean(axis=1))
    assert masked.max() < 1e-6


def test_channels_and_shuffled_patches_are_refused(network, torch):
    with pytest.raises(UserError, match="perhaps channels"):
        inspect(network(channels), torch.randn(2, 3, 16, 16))
    with pytest.raises(UserError, match="shuffled"):
        inspect(network(fused, shuffled), torch.randn(2, 3, 16, 16))


def test_a_product_that_is_not_seen_is_refused_and_the_layers_that_are_can_be_chosen(network, torch):
    calls = []

    def mixed(query, key, value):  # the first layer multiplies its softmax with something else
        calls.append(0)
        if len(calls) % 2:  # two layers in each run
            return (-(query @ key.mT).softmax(dim=-1)) @ value
        return fused(query, key, value)

    with pytest.raises(UserError, match=r"layer 1 of 2.*no product.*layers=\[1\]"):
        inspect(network(mixed), torch.randn(2, 3, 16, 20))
    calls.clear()
    report = inspect(network(mixed), torch.randn(2, 3, 16, 20), layers=[1])
    assert [layer.number for layer in report.layers_measured] == [1]
    assert "layer 1, softmax" in report.notes[0]


@pytest.mark.parametrize("output", [lambda x: {"none": None, "logits": x.mean(1)}, lambda x: (None, x.mean(1)), None])
def test_outputs_of_any_form(output, network, torch):
    report = inspect(network(fused, output=output or (lambda x: x)), torch.randn(2, 3, 16, 20))
    assert ("cosine" if output is None else "agreement") in report.replaced[-1]


def test_half_precision_and_one_image(network, torch):
    model = network(fused, between_tokens, lambda x: x.mean(dim=1))
    report = inspect(model, torch.randn(3, 12, 20), grid="3x5")
    assert (report.images, report.grid) == (1, (3, 5))
    half = inspect(network(einsum).bfloat16(), torch.randn(2, 3, 12, 20).bfloat16())
    assert half.grid == (3, 5)


def test_places_that_are_no_lattice_are_no_windows():
    places = np.arange(64).reshape(8, 8)
    window = places[:4, 4:].ravel()
    assert arranged(np.stack([window, places[4:, :4].ravel()]), (8, 8)).grid == (4, 4)
    assert arranged(np.stack([window, np.random.default_rng(0).permutation(64)[:16]]), (8, 8)) is None
