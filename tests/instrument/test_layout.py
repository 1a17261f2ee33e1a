"""Where patches are: small networks of each kind, whose layouts are known, and those that have none."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.instrument.layout import arranged
from tests.instrument.conftest import HEADS, D

pytestmark = pytest.mark.torch


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


def test_windows_are_grids_of_their_own_and_parts_that_do_not_touch_are_masked(windowed, torch):
    report = inspect(windowed(), torch.randn(2, 3, 32, 32))
    layout = report.layers_measured[0].layout
    assert (layout.grid, layout.windows) == ((4, 4), 4)
    assert [len(np.unique(region)) for region in layout.region] == [1, 2, 2, 4]
    masked = np.where(layout.region[:, :, None] == layout.region[:, None], 0, report.anatomies[0].mean.mean(axis=1))
    assert masked.max() < 1e-6


def test_windows_in_an_axis_of_their_own_are_those_among_images(windowed, torch):
    """As torchvision's MaxViT has them."""

    def apart(multiply):
        return lambda a, b: multiply(a.unflatten(0, (-1, 4)), b.unflatten(0, (-1, 4))).flatten(0, 1)

    products = torch.matmul, apart(torch.matmul), apart(lambda a, b: torch.einsum("bwhqk,bwhkc->bwhqc", a, b))
    networks = [windowed(product=product) for product in products]
    for model in networks[1:]:
        model.load_state_dict(networks[0].state_dict())
    first, *others = (inspect(model, torch.ones(2, 3, 32, 32).cumsum(3)) for model in networks)
    for report in others:
        assert report.layers_measured[0].layout.windows == 4
        np.testing.assert_allclose(report.anatomy, first.anatomy, atol=1e-6)


def test_windows_that_attend_by_a_table_of_biases_alone_give_it_back(windowed, torch):
    """As Swin's, with no scores beside it; parts that do not touch are masked."""
    table = torch.randn(HEADS, 7, 7)
    report = inspect(windowed(table), torch.randn(2, 3, 32, 32))
    expected = table.flatten(1).softmax(dim=1).reshape(HEADS, 7, 7)
    for found in report.anatomies:
        np.testing.assert_allclose(found.shares, np.tile([1.0, 0, 0], (HEADS, 1)), atol=1e-6)
        np.testing.assert_allclose(found.profile, expected, atol=1e-6)


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
