"""Rollout and class-token maps: products of whole matrices, windows at their places, merged patches."""

import numpy as np
import pytest

from attn_cnn_jax.cli.main import main
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.instrument.inspect import inspect
from attn_cnn_jax.instrument.rollout import merged, rollout


def softmax(scores):
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_rollout_is_a_product_of_half_identities_with_the_class_token(tmp_path, capsys):
    attention = softmax(np.random.default_rng(0).normal(size=(2, 3, 4, 13, 13)))
    first, second = (0.5 * layer.mean(axis=1) + 0.5 * np.eye(13) for layer in attention)
    expected = (second @ first)[..., 1:] / (second @ first)[..., 1:].sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(inspect(attention, grid=(3, 4)).rollout(), expected, atol=1e-6)
    np.savez(tmp_path / "attention.npz", attention)
    command = ["inspect", str(tmp_path / "attention.npz"), "--grid=3x4", f"--rollout={tmp_path / 'maps.npz'}"]
    assert main([*command, "--heads"]) == 0
    found = np.load(tmp_path / "maps.npz")
    np.testing.assert_allclose(found["rollout"], expected[:, 0].reshape(3, 3, 4), atol=1e-6)
    np.testing.assert_allclose(found["class_token_layer_2"], attention[1][:, :, 0, 1:].reshape(3, 4, 3, 4), atol=1e-6)
    assert len(capsys.readouterr().out.rstrip().split("\n\n")[-1].splitlines()) > 8  # a line for each of 8 heads


@pytest.mark.torch
def test_rollout_puts_windows_at_their_places(torch, windowed):
    (layer, *_) = inspect(windowed(), torch.randn(2, 3, 32, 32)).layers_measured
    whole = np.zeros((2, 64, 64))
    for image, window in np.ndindex(2, 4):
        places = layer.layout.places[window]
        whole[image][np.ix_(places, places)] = layer.attention[4 * image + window].mean(axis=0)
    np.testing.assert_allclose(rollout([layer]), (whole + np.eye(64)) / 2, atol=1e-6)
    places = np.arange(64)[layer.layout.places[0]].reshape(4, 4)
    assert (np.diff(places, axis=1) == 1).all()
    assert (np.diff(places, axis=0) == 8).all()


@pytest.mark.torch
def test_rollout_without_a_layer_before_the_last_is_refused(torch, network):
    def attend(query, key, value):
        return (query @ key.mT).softmax(dim=-1) @ value

    images = torch.randn(2, 3, 16, 16)
    assert inspect(network(attend), images, layers=[0]).rollout().shape == (2, 16, 16)
    with pytest.raises(UserError, match="layer 1 was not measured"):
        inspect(network(attend), images, layers=[1]).rollout()


def test_merged_patches_are_means_of_blocks():
    image = np.random.default_rng(0).normal(size=(4, 6))
    blocks = image.reshape(2, 2, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(merged((4, 6), (2, 2), 1) @ np.append(7, image), np.append(7, blocks), atol=1e-6)
