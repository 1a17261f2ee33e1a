"""Training that begins with what a convolution computes: a trained ResNet."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import create_model, resnet_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.training.start import begin
from tests.support.networks import logits_of

ALPHA = 14.0


def resnet(**model):
    config = resnet_config(depth=10, width=2, image_shape=(8, 8, 1), **model)
    config.dataset.name = "digits"
    return config


def save(workdir, config, model):
    """A run directory with this network."""
    workdir.mkdir(exist_ok=True)
    directory.claim(workdir, config)
    _, parameters, statistics = split(model)
    state = TrainState(jnp.int32(1), parameters, statistics, {"momentum": jnp.zeros(1)})
    with checkpoints.saving(workdir, config) as manager:
        checkpoints.save(manager, 1, state, config, {})
        manager.wait_until_finished()


def test_a_resnet_goes_on_as_attention(tmp_path):
    original = create_model(resnet().model, rngs=nnx.Rngs(0))
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 1), dtype=np.uint8)
    save(tmp_path / "resnet", resnet(), original)
    config = resnet(layers="attention", sharpness=ALPHA)
    config.start.run = str(tmp_path / "resnet")
    complete, model, _ = begin(config, tmp_path / "attention")
    assert not any(isinstance(module, nnx.Conv) for _, module in nnx.iter_modules(model))
    np.testing.assert_allclose(model.blocks[0].conv1.attention.position.spread[...], np.sqrt(2 * ALPHA), rtol=1e-6)

    save(tmp_path / "attention", complete, model)
    before, after = load_run(tmp_path / "resnet"), load_run(tmp_path / "attention")
    logits = np.asarray(logits_of(before.model, before.normalised(images)))
    found = logits_of(after.model, after.normalised(images))
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-3 * np.abs(logits).max())
    going_on = begin(config, tmp_path / "attention")[1]
    assert split(going_on)[0] == split(model)[0]
    config.model.layers = "convolution"
    config.start.run = str(tmp_path / "attention")
    with pytest.raises(UserError, match=r"config\.model\.layers"):
        begin(config, tmp_path / "third")
