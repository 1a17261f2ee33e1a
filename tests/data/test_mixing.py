"""Mixup and CutMix against loops over pictures and pixels, and the distribution of their shares."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from scipy.stats import kstest

from attn_cnn_jax.data import mixing
from attn_cnn_jax.training.mesh import data_mesh

LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)


def run(images, labels=LABELS, seed=0, **options):
    options = {"kind": "mixup", "alpha": 1.0, "count": len(labels)} | options
    return jax.jit(functools.partial(mixing.mix, **options))(jax.random.key(seed), images, labels)


def pictures(count=8, shape=(6, 10, 3)):
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


def test_mixup_is_the_weighted_mean_of_a_picture_and_the_next_one():
    images = pictures()
    mixed = run(images)
    by_label = np.where(mixed.labels == LABELS, mixed.share, 1 - mixed.share)  # of the picture itself
    for n in range(8):
        following = (n + 1) % 8
        expected = by_label[n] * images[n] + (1 - by_label[n]) * images[following]
        np.testing.assert_allclose(mixed.images[n], expected, rtol=1e-5, atol=1e-6)
        assert {int(mixed.labels[n]), int(mixed.others[n])} == {LABELS[n], LABELS[following]}
    assert (mixed.share >= 0.5).all()
    assert len({*np.asarray(mixed.labels != LABELS)}) == 2  # some are mostly the next picture


@pytest.mark.parametrize("seed", range(5))
def test_cutmix_pastes_one_rectangle_and_shares_labels_by_area(seed):
    images = pictures()
    mixed = run(images, seed=seed, kind="cutmix")
    for n in range(8):
        pasted, own = ((mixed.images[n] == images[k]).all(axis=-1) for k in ((n + 1) % 8, n))
        assert (pasted ^ own).all()
        rows, columns = np.nonzero(pasted.any(axis=1))[0], np.nonzero(pasted.any(axis=0))[0]
        assert pasted.sum() == len(rows) * len(columns)  # the rows and columns of a rectangle,
        for places in (rows, columns):
            assert (np.diff(places) == 1).all()  # one after the other
        share = max(own.mean(), pasted.mean())
        assert mixed.share[n] == pytest.approx(share)
        if own.mean() != 0.5:
            assert mixed.labels[n] == (LABELS[n] if own.mean() > 0.5 else LABELS[(n + 1) % 8])


@pytest.mark.parametrize(
    ("area", "centre", "rows", "columns"),
    [
        (0.25, (3, 5), (2, 5), (3, 8)),  # half of both sides
        (0.25, (0, 9), (0, 2), (7, 10)),  # cut off at two borders
        (1.0, (3, 5), (0, 6), (0, 10)),
        (0.0, (3, 5), (0, 0), (0, 0)),
    ],
)
def test_rectangles_have_the_proportions_of_the_picture_and_stop_at_the_border(area, centre, rows, columns):
    expected = np.zeros((6, 10), bool)
    expected[slice(*rows), slice(*columns)] = True
    got = mixing.rectangle(jnp.float32(area), jnp.array(centre), 6, 10)
    np.testing.assert_array_equal(got, expected)


def test_shares_have_the_beta_distribution():
    images = np.zeros((4000, 1, 1, 1), np.float32)
    images[::2] = 1  # a one beside a zero: the mixed value tells the share
    mixed = run(images, np.zeros(4000, np.int32), alpha=0.3)
    share = np.where(images[:, 0, 0, 0] == 1, mixed.images[:, 0, 0, 0], 1 - mixed.images[:, 0, 0, 0])
    assert kstest(share, "beta", (0.3, 0.3)).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_pictures_that_fill_up_a_batch_are_mixed_with_nothing(kind):
    images = pictures()
    alone, padded = run(images[:5], LABELS[:5], kind=kind), run(images, kind=kind, count=5)
    np.testing.assert_allclose(padded.images[5:], images[5:], rtol=1e-6)
    np.testing.assert_array_equal(padded.labels[5:], LABELS[5:])
    chex.assert_trees_all_close(jax.tree.map(lambda a: a[:5], padded), alone, rtol=1e-6)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_the_same_on_several_devices(kind):
    mesh = data_mesh(jax.devices()[:4])
    images = pictures()
    spread = jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))
    chex.assert_trees_all_close(run(spread, kind=kind), run(images, kind=kind), rtol=1e-6)


def test_bfloat16_pictures_stay_bfloat16():
    mixed = run(jnp.asarray(pictures(), jnp.bfloat16))
    assert (mixed.images.dtype, mixed.share.dtype) == (jnp.bfloat16, jnp.float32)
    expected = run(pictures()).images
    np.testing.assert_allclose(mixed.images.astype(jnp.float32), expected, atol=0.05)
