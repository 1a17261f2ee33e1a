"""Columns, controls and errors of a report: planted mixtures whose shares are known."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.anatomy import anatomy, by_place
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.instrument.kernels import best_shift

GRID = 4, 5
PATCHES = 20


@pytest.fixture
def random():
    return np.random.default_rng(0)


def scaled(part, share):
    """A part of a mixture with this share of the variance."""
    return part * np.sqrt(share / np.square(part).sum())


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_key_alone_is_the_share_of_what_all_queries_have_alike(share, random):
    keys = np.broadcast_to(random.normal(size=(3, 1, 1, PATCHES)), (3, 1, PATCHES, PATCHES))
    rest = random.normal(size=keys.shape)
    rest -= rest.mean(axis=2, keepdims=True)  # the same to all keys over queries
    keys, rest = (part - part.mean(axis=3, keepdims=True) for part in (keys, rest))
    attention = 1 / PATCHES + 0.1 * (scaled(keys, share) + scaled(rest, 1 - share))
    report = inspect(attention[None], grid=GRID)
    np.testing.assert_allclose(report.layers_measured[0].key_alone, share, atol=1e-4)


@pytest.mark.parametrize("shift", [(0, 0), (-1, 2), (1, 0), (2, -1)])
def test_a_shift_is_named_with_its_share(shift, random):
    """Where it leads outside, and for the rest of the attention, a query attends to all alike."""
    places = np.indices(GRID).reshape(2, -1).T
    there = (places[None] - places[:, None] == shift).all(axis=-1)
    mean = np.where(there, 0.6, 0) + np.where(there.any(axis=1), 0.4, 1)[:, None] / PATCHES
    mean[0], mean[-1] = np.eye(PATCHES)[[-1, 0]]  # from one corner to the other: of one query, and no shift
    found = best_shift(mean[None, None], GRID)
    inside = there.any(axis=1)
    inside[[0, -1]], queries = False, there.any(axis=1).sum()
    assert (found.rows[0], found.columns[0]) == shift
    np.testing.assert_allclose(found.share[0], inside.sum() * (0.6 + 0.4 / PATCHES) / queries)


def test_the_largest_kernel_has_all_shifts_of_the_longer_side(random):
    attention = np.stack([by_place(np.exp(random.normal(size=(2, 7, 9))), GRID)] * 3)
    report = inspect(attention[None], grid=GRID, kernel_size=9)
    np.testing.assert_allclose(report.kernel_error[0], 0, atol=1e-6)
    np.testing.assert_allclose(report.within[0], 1, atol=1e-6)
    with pytest.raises(UserError, match="kernel_size=10: allowed is 1 to 9"):
        inspect(attention[None], grid=GRID, kernel_size=10)


def test_errors_of_crops_are_those_of_photos(random):
    """The share of content of 4 photos with 5 nearly equal crops each: `groups=` states how much it varies."""
    places = by_place(np.exp(random.normal(size=(1, 5, 5))), (3, 3))
    photos, found = np.repeat(np.arange(6), 4), []
    for _ in range(100):
        content = np.repeat(random.dirichlet(np.full(9, 0.3), size=(6, 1, 9)), 4, axis=0)
        crops = random.dirichlet(np.full(9, 0.3), size=content.shape[:3])
        attention = 0.5 * places + 0.48 * content + 0.02 * crops
        by_photo, by_crop = (anatomy(attention, (3, 3), groups=groups) for groups in (photos, None))
        found.append((by_photo.shares[0, 2], by_photo.errors[0, 2], by_crop.errors[0, 2]))
    shares, stated, by_crop = np.array(found).T
    assert 0.7 < np.sqrt(np.square(stated).mean()) / shares.std() < 1.8
    assert np.sqrt(np.square(by_crop).mean()) / shares.std() < 0.6


def test_two_photos_give_no_errors_rather_than_errors_of_zero(random):
    attention = random.dirichlet(np.ones(9), size=(6, 2, 9))
    two, three = (inspect([attention], groups=[i % n for i in range(6)]) for n in (2, 3))
    assert "error" not in two.rows()[0]
    assert "shares without errors" in str(two)
    assert three.rows()[0]["error"] > 0
    assert "6 images of 3 photos: errors from fewer than 8" in str(three)


@pytest.fixture
def mixtures(torch):
    """A network whose heads mix attention by place, `(h, q, p)`, and by likeness, with weights by head for place."""
    from torch import nn

    class Mixtures(nn.Module):
        def __init__(self, place, weights):
            super().__init__()
            self.place, self.weights = place, weights
            self.output = nn.Linear(6 * len(weights), 4)

        def likeness(self, x):
            return (2 * x @ x.mT).softmax(dim=-1)[:, None]

        def forward(self, x):
            weights = self.weights[:, None, None]
            attention = weights * self.place + (1 - weights) * self.likeness(x)
            averages = attention @ x[:, None].expand(-1, len(weights), -1, -1)
            return self.output(averages.transpose(1, 2).flatten(2))

    return Mixtures


@pytest.mark.torch
def test_position_alone_is_the_cosine_that_place_explains(mixtures, random, torch):
    """With equal patches likeness is uniform, so that the cosine is that of place with the mixture."""
    weights = torch.tensor([1.0, 0.7, 0.1, 0.0])
    place = torch.tensor(random.dirichlet(np.full(PATCHES, 0.3), size=(4, PATCHES)), dtype=torch.float32)
    network, x = mixtures(place, weights), torch.randn(6, PATCHES, 6)
    report = inspect(network, x, grid=GRID)
    by_place, likeness = place.numpy() - 1 / PATCHES, network.likeness(x).mean(dim=0).numpy() - 1 / PATCHES
    mean = weights.numpy()[:, None, None] * by_place + (1 - weights.numpy())[:, None, None] * likeness
    norms = [np.sqrt(np.square(x).sum(axis=(1, 2))) for x in (by_place, mean)]
    expected = (by_place * mean).sum(axis=(1, 2)) / (norms[0] * norms[1]) * (weights.numpy() > 0)
    np.testing.assert_allclose(report.layers_measured[0].position_alone, expected, atol=1e-4)


@pytest.mark.torch
def test_controls_are_uniform_and_mean_attention(mixtures, random, torch):
    place = torch.tensor(random.dirichlet(np.full(PATCHES, 0.3), size=(2, PATCHES)), dtype=torch.float32)
    network, x = mixtures(place, torch.ones(2)), torch.randn(3, PATCHES, 6)
    report = inspect(network, x, grid=GRID)
    assert report.curve([2], instead="mean")[0]["logits"] < 1e-5  # attention that no image changes
    own = network(x).detach()
    network.place = torch.full_like(place, 1 / PATCHES)
    uniform = network(x).detach()
    expected = float((uniform - own).abs().max() / own.abs().max())
    assert report.curve([2], instead="uniform")[0]["logits"] == pytest.approx(expected, rel=1e-3)


def test_heads_that_attend_alike_count_once(random):
    """Of five heads two are copies, and one is a mean of two others."""
    a, b = by_place(np.exp(random.normal(size=(2, 7, 9))), GRID)
    report = inspect(np.stack([a, b, a, b, (a + b) / 2])[None, None], grid=GRID)
    assert report.layers()[0]["rank"] == 2
    assert max(map(len, str(report).splitlines())) <= 100
