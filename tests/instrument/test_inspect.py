"""The instrument: planted heads are found in networks of other libraries, and replaced; what comes in is checked."""

import csv
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.analysis.anatomy import by_place
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument import inspect, page
from attn_cnn_jax.instrument.networks import watch
from attn_cnn_jax.runs.run import Run

GRID = 4, 5
PATCHES = 20


@pytest.fixture
def random():
    return np.random.default_rng(0)


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def with_prefix(patches, random, share=0.3):
    """Adds a class token that has a share of every query's attention."""
    whole = np.zeros((*patches.shape[:-2], PATCHES + 1, PATCHES + 1))
    whole[..., 1:, 1:], whole[..., 1:, 0] = (1 - share) * patches, share
    whole[..., 0, :] = softmax(random.normal(size=whole[..., 0, :].shape))
    return whole


def test_the_prefix_is_left_out_and_its_share_is_said(random):
    patches = by_place(np.exp(random.normal(size=(3, 7, 9))), GRID)
    attention = np.repeat(with_prefix(patches, random)[None, None], 2, axis=1)
    report = inspect(attention, grid=GRID, prefix=1)
    np.testing.assert_allclose(report.attention[0][0], patches, atol=1e-6)
    np.testing.assert_allclose(report.prefix_share[0], 0.3, atol=1e-6)
    np.testing.assert_allclose(report.anatomy[0], np.tile([1.0, 0, 0], (3, 1)), atol=1e-5)
    assert "30.0%" in str(report)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((1, 2, 3, 20, 21), {}, "as many queries"),
        ((2, 3, 20, 20), {}, "expected is (layers, images, heads, q, k)"),
        ((1, 2, 3, 20, 20), {"grid": (5, 5)}, "20 tokens is not over a grid of 5x5"),
        ((1, 2, 3, 20, 20), {"grid": (4, 4), "prefix": 1}, "prefix of 1"),
        ((1, 2, 3, 16, 16), {"kernel_size": 9}, "kernel_size=9: allowed is 1 to 7"),
    ],
)
def test_what_is_no_attention_over_the_grid_is_refused(shape, options, words):
    with pytest.raises(UserError) as error:
        inspect(np.full(shape, 1 / shape[-1]), **options)
    assert words in str(error.value)


def test_scores_before_the_softmax_are_refused(random):
    with pytest.raises(UserError, match="after the softmax"):
        inspect(random.normal(size=(1, 2, 3, 16, 16)))


class SmallViT(nnx.Module):
    """Two layers of `nnx.MultiHeadAttention` over 4x4 patches and a class token."""

    def __init__(self, rngs):
        self.token = nnx.Param(jnp.ones((1, 1, 12)))
        self.layers = nnx.List([nnx.MultiHeadAttention(3, 12, decode=False, rngs=rngs) for _ in range(2)])
        self.classifier = nnx.Linear(12, 5, rngs=rngs)

    def __call__(self, x):
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (len(x), 1, 12)), x], axis=1)
        for layer in self.layers:
            x = x + layer(x)
        return self.classifier(x[:, 0])


def test_nnx_networks_are_watched_and_left_as_they_are(random):
    model, x = SmallViT(nnx.Rngs(0)), random.normal(size=(2, 16, 12)).astype(np.float32)
    logits = np.asarray(model(x))
    report = inspect(model, x)
    assert [layer.shape for layer in report.attention] == [(2, 3, 16, 16)] * 2
    assert max(report.differences) < 1e-5
    assert report.replaced.logits[0] < 1e-5  # none replaced
    np.testing.assert_array_equal(logits, model(x))
    query, key = model.layers[0].query(jnp.asarray(x)), model.layers[0].key(jnp.asarray(x))
    query, key = (np.moveaxis(np.asarray(array, np.float64), 2, 1) for array in (query, key))
    whole = watch(model, x).layers[0].attention[:, :, 1:, 1:]
    expected = softmax(query @ key.swapaxes(-1, -2) / 2)  # D_h = 4
    np.testing.assert_allclose(whole / whole.sum(axis=-1, keepdims=True), expected, atol=1e-5)


@pytest.mark.parametrize("content", [False, True])
def test_runs_are_watched_and_left_as_they_are(content, random):
    config = attention_config(
        encoding="learned" if content else "quadratic", content=content, image_shape=(8, 8, 1), num_layers=2,
        num_heads=4, hidden_size=12, head_size=4, downsample=2, intermediate_size=8,
    )  # fmt: skip
    config.dataset.update({"name": "digits", "mean": (0.3,), "std": (0.3,)})
    run = Run(config, 0, create_model(config.model, rngs=nnx.Rngs(0)))
    images = random.integers(0, 256, (3, 8, 8, 1), np.uint8)
    report = inspect(run, images)
    assert report.grid == (4, 4)
    assert max(report.differences) < 1e-5
    assert report.replaced.logits[0] < 1e-5
    expected = run.attention(images)[1].reshape(-1, 4, 16, 16)
    np.testing.assert_allclose(report.attention[1], np.broadcast_to(expected, (3, 4, 16, 16)), atol=1e-5)
    if not content:
        np.testing.assert_allclose(report.anatomy[..., 0], 1, atol=1e-5)


def test_files_and_what_is_written(tmp_path, random, capsys):
    attention = softmax(random.normal(size=(2, 3, 2, 17, 17))).astype(np.float32)
    np.savez(tmp_path / "attention.npz", **{f"layer{n}": layer for n, layer in enumerate(attention)})
    files = [f"--{kind}={tmp_path / 'out'}.{kind}" for kind in ("csv", "json")]
    command = ["inspect", str(tmp_path / "attention.npz"), "--prefix=1", f"--page={tmp_path / 'out.html'}", *files]
    assert main(command) == 0
    report = inspect(attention, prefix=1)
    assert capsys.readouterr().out.strip() == str(report).strip()
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [float(row["relative"]) for row in rows] == pytest.approx([row["relative"] for row in report.rows()], 1e-5)
    assert len(json.loads((tmp_path / "out.json").read_text())["heads"]) == 4
    assert "<canvas" in (tmp_path / "out.html").read_text()


def test_a_page_has_the_images_that_fit(tmp_path, random, monkeypatch):
    report = inspect(softmax(random.normal(size=(1, 3, 2, 16, 16))))
    monkeypatch.setattr(page, "MOST_VALUES", 2 * 2 * 256)
    assert page.write(report, tmp_path / "page.html", random.normal(size=(3, 3, 8, 8))) == 2


def test_rollout_is_a_product_of_half_identities(random):
    attention = softmax(random.normal(size=(2, 1, 3, 16, 16)))
    first, second = (0.5 * layer[0].mean(axis=0) + 0.5 * np.eye(16) for layer in attention)
    np.testing.assert_allclose(inspect(attention).rollout()[0], second @ first, atol=1e-6)
