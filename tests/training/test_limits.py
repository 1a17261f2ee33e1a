"""What memory does not allow is said before any work, all the seeds of a run counted."""

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training import limits


def test_memory_is_that_of_all_seeds(monkeypatch):
    config = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4)
    needed = []
    monkeypatch.setattr(limits, "device_memory", lambda: 0)
    for config.train.num_seeds in (1, 5):
        with pytest.raises(UserError) as error:
            limits.check_memory(config)
        needed.append(str(error.value))
    assert "train.num_seeds" not in needed[0]
    assert "in each of 5 networks" in needed[1]
    assert "lower config.train.num_seeds" in needed[1]


def test_one_seed_may_fit_where_several_do_not(monkeypatch):
    config = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4)
    monkeypatch.setattr(limits, "device_memory", lambda: 20_000)  # the network has about 1,000 parameters
    limits.check_memory(config)
    config.train.num_seeds = 5
    with pytest.raises(UserError, match="lower config"):
        limits.check_memory(config)
