"""A small run on digits, for tests of what a run leaves and of how it goes on."""

import jax
import numpy as np

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config

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


def parameters(workdir):
    return jax.tree.leaves(load_run(workdir).model)


def assert_same_parameters(workdir, other):
    for a, b in zip(parameters(workdir), parameters(other), strict=True):
        np.testing.assert_array_equal(a, b)
