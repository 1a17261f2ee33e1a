"""What memory does not allow is said before any work."""

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training import limits


def test_a_network_needs_its_parameters_three_times(monkeypatch):
    config = attention_config(
        image_shape=(8, 8, 1), hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4, head_size=2, downsample=1
    )
    parameters = (
        (8 + 8)  # the map of colour channels, a bias
        + 4 * (2 + 1)  # centre and spread of each head
        + (8 * 8)  # values of all heads
        + (8 * 8 + 8)  # W_out of all heads, a bias
        + 3 * (8 * 8 + 8)  # the layers of the feed-forward network, dense, intermediate and output
        + 2 * (8 + 8)  # two layer norms
        + (8 * 10 + 10)  # the classifier
    )
    monkeypatch.setattr(limits, "device_memory", lambda: 3 * 4 * parameters)
    limits.check_memory(config)
    monkeypatch.setattr(limits, "device_memory", lambda: 3 * 4 * parameters - 1)
    with pytest.raises(UserError, match=f"has {parameters:,} parameters: training needs 0 GB"):
        limits.check_memory(config)
