"""Where patches are: small networks of each kind, whose layouts are known, and those that have none."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.instrument.layout import arranged, lattice
from attn_cnn_jax.instrument.network import Network
from tests.instrument.conftest import HEADS, D
from tests.support.attends import (
    between_tokens,
    cast,
    einsum,
    fused,
    heads_with_images,
    keys_first,
    stem,
    transposed,
)

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("attend", [fused, einsum, heads_with_images, transposed, keys_first, cast])
def test_grids_and_other_tokens_are_found(attend, network, torch):
    model = network(attend, between_tokens).eval()
    report = inspect(model, torch.randn(2, 3, 12, 20), kernel_size=(3, 5))
    assert report.grids == [(3, 5)] * 2
    assert report.layers_measured[0].layout.others.tolist() == [0, 16, 17]
    assert [layer.shape for layer in report.attention] == [(2, HEADS, 15, 15)] * 2
    assert max(report.differences) < 1e-5
    assert report.curve([0, 6], instead="uniform")[1]["logits"] > 0


def test_values_and_scores_that_heads_or_images_share_are_those_repeated(network, torch):
    """Heads with the values of one, and scores of places alone, without an axis of images of their own."""
    scores = torch.randn(1, HEADS, 15, 15)

    def attend(repeated):
        def shared(query, key, value):
            weights, values = scores.softmax(dim=-1), value[:, :1]
            if repeated:
                weights, values = weights.expand(len(value), -1, -1, -1), values.expand_as(value)
            return weights @ values

        return shared

    one, other = network(attend(False)), network(attend(True))
    other.load_state_dict(one.state_dict())
    images = torch.randn(4, 3, 12, 20)  # with the featureless one 5, which heads do not divide
    found, expected = inspect(one, images), inspect(other, images)
    np.testing.assert_allclose(found.anatomy, expected.anatomy, atol=1e-6)
    np.testing.assert_allclose(found.curve([3])[0]["logits"], expected.curve([3])[0]["logits"], rtol=1e-4)
    assert max(found.differences) < 1e-5


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


def test_a_shift_has_the_share_of_queries_whose_key_is_not_masked(windowed, torch):
    """Heads that all attend to the right neighbour, wherever the windows let them."""
    table = torch.zeros(HEADS, 7, 7)
    table[:, 3, 4] = 30
    report = inspect(windowed(table), torch.randn(2, 3, 32, 32))
    columns = report.columns(0)
    np.testing.assert_array_equal((columns["shift_row"], columns["shift_column"]), [[0] * HEADS, [1] * HEADS])
    np.testing.assert_allclose(columns["shift_share"], 1, atol=1e-5)
    np.testing.assert_allclose(report.statistics[0].shift_mass.max(axis=1), 1, atol=1e-5)


def test_windows_that_attend_by_a_table_of_biases_alone_give_it_back(windowed, torch):
    """As Swin's, with no scores beside it; parts that do not touch are masked."""
    table = torch.randn(HEADS, 7, 7)
    report = inspect(windowed(table), torch.randn(2, 3, 32, 32))
    expected = table.flatten(1).softmax(dim=1).reshape(HEADS, 7, 7)
    for found in report.anatomies:
        np.testing.assert_allclose(found.shares, np.tile([1.0, 0, 0], (HEADS, 1)), atol=1e-6)
        np.testing.assert_allclose(found.profile, expected, atol=1e-6)


@pytest.mark.parametrize("output", [lambda x: {"none": None, "logits": x.mean(1)}, lambda x: (None, x.mean(1)), None])
def test_outputs_of_any_form(output, network, torch):
    report = inspect(network(fused, output=output or (lambda x: x)), torch.randn(2, 3, 16, 20))
    assert ("cosine" if output is None else "agreement") in report.replaced[-1]


@pytest.mark.parametrize(
    ("others", "output"), [("first", "all"), ("last", "all"), ("first", "patches"), ("first", "some")]
)
def test_features_of_patches_are_told_from_those_of_other_tokens(others, output, network, torch):
    def tokens(x):
        more = torch.ones(len(x), 3, D)
        return torch.cat([more, x] if others == "first" else [x, more], dim=1)

    patches = slice(3, None) if others == "first" else slice(16)
    chosen = {"all": slice(None), "patches": patches, "some": slice(1, None)}[output]
    model, images = network(fused, tokens, lambda x: x[:, chosen]), torch.randn(2, 3, 16, 16)
    report = inspect(model, images)
    (row,) = report.curve([2 * HEADS])
    replaced = report.replaced_network(2 * HEADS)
    model.output = replaced.model.output = lambda x: x
    with torch.no_grad():
        cosine = torch.nn.functional.cosine_similarity(model(images), replaced(images), dim=-1).mean(dim=0)
    expected = {} if output == "some" else {"cosine": float(cosine[patches].mean())}
    if output == "all":
        expected["cosine_class_token"] = float(cosine[0 if others == "first" else 16])
    assert {name: row[name] for name in row if "cosine" in name} == pytest.approx(expected, abs=1e-5)


def test_half_precision_and_one_image(network, torch):
    model = network(fused, between_tokens, lambda x: x.mean(dim=1))
    report = inspect(model, torch.randn(3, 12, 20), grid="3x5")
    assert (report.images, report.grid) == (1, (3, 5))
    half = inspect(network(einsum).bfloat16(), torch.randn(2, 3, 12, 20).bfloat16())
    assert half.grid == (3, 5)


def test_patches_that_overlap_or_do_not_fill_the_image_are_found(network, torch):
    """A convolutional stem, of 8 pixels a step that look at 15; and patches of 4 pixels in an image of 14 by 22."""
    report = inspect(network(fused, between_tokens, patches=stem(torch)), torch.randn(2, 3, 32, 48))
    assert report.grids == [(4, 6)] * 2
    assert report.layers_measured[1].layout.others.tolist() == [0, 25, 26]
    for seed in (0, 2, 17):  # of the last two the first strips say too little
        torch.manual_seed(seed)
        model = network(fused, lambda x: x[:, torch.arange(15).flip(0)])
        layout = inspect(model, torch.randn(2, 3, 14, 22)).layers_measured[1].layout
        assert (layout.grid, layout.patch((14, 22))) == ((3, 5), (4, 4))
        np.testing.assert_array_equal(layout.tokens[0], np.arange(15)[::-1])


@pytest.mark.parametrize(("size", "patch", "pad"), [(30, 8, 2), (70, 16, 10)])
def test_patches_of_images_that_a_network_pads_keep_their_size(size, patch, pad, network, torch):
    """An image whose patches are all alike repeats the mean of whole patches."""
    nn = torch.nn
    model = network(fused, patches=nn.Sequential(nn.ZeroPad2d((0, pad, 0, pad)), nn.Conv2d(3, D, patch, patch)))
    images = torch.randn(2, 3, size, size)
    layout = inspect(model, images).layers_measured[0].layout
    assert layout.patch((size, size)) == (patch, patch)
    *_, alike = Network(model, images).with_featureless(layout.grid, (patch, patch)).numpy()
    whole = size // patch
    patches = images.numpy()[..., : whole * patch, : whole * patch].reshape(2, 3, whole, patch, whole, patch)
    np.testing.assert_allclose(alike[:, :patch, :patch], patches.mean(axis=(0, 2, 4)), atol=1e-6)
    np.testing.assert_array_equal(alike[:, patch:, patch:], alike[:, :-patch, :-patch])


@pytest.mark.parametrize("heads_first", [False, True])
def test_windows_whose_tokens_lie_between_those_of_others_are_found(heads_first, network, torch):
    """MaxViT's grids: every second patch of 8x8, after a stem whose patches overlap; windows before heads, or after."""

    def cut(x):  # to (b, windows, heads, 16, c)
        x = x.unflatten(2, (4, 2, 4, 2)).permute(0, 3, 5, 1, 2, 4, 6).flatten(4, 5).flatten(1, 2)
        return x.transpose(1, 2) if heads_first else x

    def attend(*parts):
        x = fused(*map(cut, parts))
        x = x.transpose(1, 2) if heads_first else x
        return x.unflatten(1, (2, 2)).unflatten(4, (4, 4)).permute(0, 3, 4, 1, 5, 2, 6).flatten(2, 5)

    report = inspect(network(attend, patches=stem(torch, 2)), torch.randn(2, 3, 32, 32))
    layout = report.layers_measured[0].layout
    assert (layout.grid, layout.windows, layout.image) == ((4, 4), 4, (8, 8))
    places = np.arange(64).reshape(8, 8)
    np.testing.assert_array_equal(layout.places, [places[i::2, j::2].ravel() for i in (0, 1) for j in (0, 1)])
    assert report.anatomy.shape == (2, HEADS, 3)
    assert max(report.differences) < 1e-5
    assert report.curve([0, 6])[1]["logits"] > 0


def test_windows_that_are_padded_are_refused(network, torch):
    def padded(*parts):  # 4x6 patches in two windows of 4x4
        x = [torch.nn.functional.pad(x.unflatten(2, (4, 6)), (0, 0, 0, 2)).unflatten(3, (2, 4)) for x in parts]
        x = fused(*(x.permute(0, 1, 3, 2, 4, 5).flatten(3, 4) for x in x))
        return x.unflatten(3, (4, 4)).transpose(2, 3).flatten(3, 4)[:, :, :, :6].flatten(2, 3)

    with pytest.raises(UserError, match="padding"):
        inspect(network(padded), torch.randn(2, 3, 16, 24))


def test_places_that_are_no_lattice_are_no_windows():
    places = np.arange(64).reshape(8, 8)
    window = places[:4, 4:].ravel()
    assert arranged(np.stack([window, places[4:, :4].ravel()]), (8, 8)).grid == (4, 4)
    assert arranged(np.stack([window, np.random.default_rng(0).permutation(64)[:16]]), (8, 8)) is None


def test_centres_that_make_no_lattice_are_refused():
    """Rows 1 apart whose tokens differ by less than that are told apart; what chance makes is not taken for one."""
    random = np.random.default_rng(0)
    rows, columns = np.divmod(random.permutation(35), 7)
    centres = np.stack([rows, columns]) + random.uniform(-0.35, 0.35, size=(2, 35))
    found = lattice(centres)
    assert found.grid == (5, 7)
    np.testing.assert_array_equal(found.places, 7 * rows + columns)
    assert lattice(centres, (7, 5)) is None
    assert not any(lattice(random.normal(size=(2, 16))) for _ in range(1000))
