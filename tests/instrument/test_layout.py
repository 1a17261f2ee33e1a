"""Where patches are: small networks of each kind, whose layouts are known, and those that have none."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.instrument.layout import arranged, lattice
from attn_cnn_jax.instrument.network import Network
from attn_cnn_jax.instrument.proof import by_halves, prove
from tests.instrument.conftest import HEADS, D

pytestmark = pytest.mark.torch


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


def stem(torch, layers=3):
    """Convolutions with a stride of two, whose patches overlap."""
    nn = torch.nn
    convolutions = [nn.Conv2d(D if n else 3, D, 3, 2, 1) for n in range(layers)]
    return nn.Sequential(*(layer for convolution in convolutions for layer in (convolution, nn.GELU())))


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
