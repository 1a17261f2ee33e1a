"""What is left out or refused: queries that are no places, products not seen, networks that are random."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.instrument.network import Network
from attn_cnn_jax.instrument.proof import by_halves, prove
from tests.instrument.conftest import HEADS, D
from tests.support.attends import (
    channels,
    fused,
    heads_before_images,
    heads_with_images,
    other_queries,
    shuffled,
    stem,
    summed,
)

pytestmark = pytest.mark.torch


def test_channels_and_shuffled_patches_are_refused(network, torch):
    with pytest.raises(UserError, match="perhaps channels"):
        inspect(network(channels), torch.randn(2, 3, 16, 16))
    with pytest.raises(UserError, match=r"no product of it with values.*save can be inspected as an array"):
        inspect(network(summed), torch.randn(2, 3, 16, 16))
    with pytest.raises(UserError, match="shuffled"):
        inspect(network(fused, shuffled), torch.randn(2, 3, 16, 16))


class Latents:
    """Attends from as many vectors of its own as there are patches."""

    def __init__(self, torch, count=16):
        self.queries = torch.randn(1, HEADS, count, D // HEADS)

    def __call__(self, query, key, value):
        return fused(self.queries.expand_as(key), key, value)


def in_windows(attend):
    """Attention in windows of 7x7 places of 14x14."""

    def cut(x):
        return x.unflatten(2, (2, 7, 2, 7)).permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)

    def attended(*parts):
        x = attend(*map(cut, parts)).unflatten(0, (-1, 2, 2)).unflatten(4, (7, 7))
        return x.permute(0, 3, 1, 4, 2, 5, 6).flatten(2, 5)

    return attended


def with_second_layer(network, attend, patches=None, around=lambda attend: attend):
    """A network whose first layer has queries of its own, and attention that is far from uniform."""
    import torch

    calls = []

    def mixed(*parts):
        calls.append(0)
        return (attend if len(calls) == 2 else fused)(*parts)

    model = network(around(mixed), lambda x: calls.clear() or x, patches=patches)
    with torch.no_grad():
        model.qkv.weight *= 3
    return model


@pytest.mark.parametrize("how", ["latents", "order", "overlap", "windows"])
def test_layers_whose_queries_are_no_places_are_left_out(how, network, torch):
    """Of the second layer; the first has its own. Those of windows are the same for all, as GCViT's."""
    torch.manual_seed(2)
    attend = {"latents": Latents(torch), "windows": Latents(torch, 49)}.get(how, other_queries)
    patches = stem(torch, 2) if how in ("overlap", "windows") else None
    around = {"around": in_windows} if how == "windows" else {}
    model = with_second_layer(network, attend, patches, **around)
    size = {"overlap": 32, "windows": 56}.get(how, 16)
    layers = inspect(model, torch.randn(2, 3, size, size))
    assert [layer.number for layer in layers.layers_measured] == [0]
    assert "its queries are no places, or not those of its keys" in layers.notes[0]


def test_layers_of_latents_are_left_out(network, torch):
    """A Perceiver with as many latents as patches: where a latent looks is no place, nor is it in the next layer."""

    class Perceiver(type(network(fused))):
        def forward(self, x):
            x, latents = self.patches(x).flatten(2).transpose(1, 2), self.latents.expand(len(x), -1, -1)
            for of in (x, None):
                query, _, _ = self.parts(latents)
                _, key, value = self.parts(latents if of is None else of)
                latents = latents + fused(query, key, value).transpose(1, 2).flatten(2)
            return self.output(self.head(latents))

        def parts(self, x):
            return (3 * self.qkv(x)).reshape(len(x), -1, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)

    model = Perceiver(fused)
    model.latents = torch.randn(1, 16, D)
    with pytest.raises(UserError, match=r"layer 1, .*queries are no places, .*layer 2, .* no change of the image"):
        inspect(model, torch.randn(2, 3, 16, 16))


def test_queries_are_asked_of_layers_in_any_order(network, torch):
    """GCViT's second layer was mapped before its first one, which then was left out in its place."""
    model = with_second_layer(network, Latents(torch))
    watched = Network(model, torch.randn(2, 3, 16, 16))
    layout = prove(watched, None, None, None)[0][0].layout
    assert by_halves(watched, layout, [1, 0], (16, 16)) == {1: (True, False), 0: (True, True)}


def test_a_network_that_holds_heads_or_flips_before_images_is_not_said_to_be_random(network, torch):
    def merged(*parts):
        x = fused(*(x.transpose(0, 1).flatten(0, 1) for x in parts))
        return x.unflatten(0, (HEADS, -1)).transpose(0, 1)

    class Flipped(type(network(fused))):
        def forward(self, x):
            one, other = super().forward(torch.cat([x, x.flip(-1)])).chunk(2)
            return one + other

    for model in (network(merged), Flipped(fused)):
        with pytest.raises(UserError, match="does not hold one image after another"):
            inspect(model, torch.randn(2, 3, 16, 16))


def masked(torch, mask):
    return lambda *parts: torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)


def test_queries_without_keys_have_zeros_as_the_network_gives_them(network, torch):
    """Padding tokens, masked as keys and as queries; a patch without keys is refused."""
    valid = torch.arange(18) < 16
    pad = lambda x: torch.cat([x, x.new_zeros(len(x), 2, D)], dim=1)  # noqa: E731
    report = inspect(network(masked(torch, valid[:, None] & valid), pad), torch.randn(2, 3, 16, 16))
    assert max(report.differences) < 1e-5
    assert np.isfinite(report.rollout()).all()
    (row,) = report.curve([2 * HEADS])
    replaced, x = report.replaced_network(2 * HEADS), torch.randn(2, 3, 16, 16)
    assert np.isfinite(row["logits"])
    assert replaced(x).isfinite().all()
    lonely = torch.ones(16, 16, dtype=torch.bool)
    lonely[3] = False
    with pytest.raises(UserError, match="layer 1: 1 patches have no keys"):
        inspect(network(masked(torch, lonely)), torch.randn(2, 3, 16, 16))


def test_a_network_that_is_random_in_evaluation_is_refused(network, torch):
    with pytest.raises(UserError, match=r"dropout_p=0.3\) in evaluation"):
        inspect(
            network(lambda *parts: torch.nn.functional.scaled_dot_product_attention(*parts, dropout_p=0.3)),
            torch.randn(2, 3, 16, 16),
        )


def test_averages_under_autocast_are_rounded(network, torch):
    def attend(*parts):
        with torch.autocast("cpu", torch.bfloat16):
            return fused(*parts).float()

    report = inspect(network(attend), torch.randn(2, 3, 16, 16))
    assert 1e-4 < max(report.differences) < 0.05


def test_calls_whose_first_axis_is_not_of_images_are_refused(network, torch):
    with pytest.raises(UserError, match=r"shape \(3, \d+, 16, 16\) for \d+ images: its first axis is not of images"):
        inspect(network(heads_before_images), torch.randn(2, 3, 16, 16))


def test_flex_attention_is_refused_rather_than_left_out(network, torch, monkeypatch):
    from torch.nn.attention import flex_attention as module

    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # 16 seconds
    with pytest.raises(UserError, match="calls flex_attention"):
        inspect(network(module.flex_attention), torch.randn(2, 3, 16, 16))


def test_a_product_that_is_not_seen_is_refused_and_the_layers_that_are_can_be_chosen(network, torch):
    calls = []

    def mixed(query, key, value):  # the first layer multiplies its softmax with something else
        calls.append(0)
        if len(calls) % 2:  # two layers in each run
            return (-(query @ key.mT).softmax(dim=-1)) @ value
        return fused(query, key, value)

    with pytest.raises(UserError, match=r"layer 1 of 2.*no product.*layers=\[1\], numbers from 0"):
        inspect(network(mixed), torch.randn(2, 3, 16, 20))
    calls.clear()
    report = inspect(network(mixed), torch.randn(2, 3, 16, 20), layers=[1])
    assert [layer.number for layer in report.layers_measured] == [1]
    assert "layer 1, softmax" in report.notes[0]


@pytest.mark.parametrize("lost", ["talking heads", "einsum with dots", "other axis", "logarithm"])
def test_a_softmax_whose_product_is_not_seen_is_not_that_of_the_next_layer(lost, network, torch):
    """The second layer multiplies a copy of another shape of its own, which took the first one's place."""
    calls, mix = [], torch.eye(HEADS) + torch.rand(HEADS, HEADS)

    def mixed(query, key, value):
        calls.append(0)
        scores = query @ key.mT / 2
        if len(calls) % 2 == 0:
            return heads_with_images(query, key, value)
        if lost == "talking heads":
            return torch.einsum("bhqk,hg->bgqk", scores.softmax(dim=-1), mix) @ value
        if lost == "einsum with dots":
            return torch.einsum("...qk,...kc->...qc", scores.softmax(dim=-1), value)
        weights = scores.mT.softmax(2) if lost == "other axis" else scores.mT.log_softmax(2).exp()
        return (weights[..., None] * value[:, :, :, None]).sum(dim=2)

    with pytest.raises(UserError, match=r"layer 1 of 2, softmax of shape .*no product"):
        inspect(network(mixed), torch.randn(2, 3, 16, 20))
