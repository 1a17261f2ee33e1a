"""A small run on digits, for tests of what a run leaves and of how it goes on."""

import jax
import numpy as np

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.training.optimizer import create_optimizer
from attn_cnn_jax.training.step import initial_state

BATCH_SIZE, STEPS_PER_EPOCH = 96, 1442 // 96


def digits_config(data_dir):
    """One layer of four heads, three epochs."""
    config = attention_config(
        image_shape=(8, 8, 1), hidden_size=16, intermediate_size=8, num_layers=1, num_heads=4, attention_dropout=0.0
    )
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.augment.update({"crop_padding": 1, "flip": False})
    config.train.update({"batch_size": BATCH_SIZE, "num_epochs": 3, "log_every_steps": 10, "logger": "none"})
    return config


def write_run(workdir, config, network):
    """A finished run with this network, as training leaves it; without the training."""
    _, state = initial_state(network, create_optimizer(config.optimizer, lambda step: 0.1))
    workdir.mkdir(exist_ok=True)
    directory.claim(workdir, config)
    with checkpoints.saving(workdir, config) as manager:
        checkpoints.save(manager, 6, state, config, {"loss": [], "accuracy": []})
    return workdir


def parameters(workdir):
    return jax.tree.leaves(load_run(workdir).model)


def assert_same_parameters(workdir, other):
    for a, b in zip(parameters(workdir), parameters(other), strict=True):
        np.testing.assert_array_equal(a, b)
