"""The size of a network, told from networks of one and two layers."""

import pytest

from attn_cnn_jax.config import attention_config, resnet_config
from attn_cnn_jax.config import size as module
from attn_cnn_jax.config.size import parameter_size, size_of

SMALL = {"hidden_size": 8, "intermediate_size": 8, "downsample": 1}


@pytest.mark.parametrize(
    "model",
    [
        {"num_layers": 3, "num_heads": 4},
        {"num_layers": 4, "num_heads": (4, 1, 9, 1), "content": True},
        {"num_layers": 3, "num_heads": 2, "encoding": "learned"},
        {"num_layers": 3, "num_heads": (2, 3, 3), "encoding": "learned", "content": True, "share_tables": True},
        {"num_layers": 1, "num_heads": 4, "gate": True, "content": True},
    ],
)
def test_it_is_that_of_all_layers(model):
    model = attention_config(**SMALL, **model).model
    assert parameter_size(model) == size_of(model)


def test_a_resnet_is_looked_at_whole():
    model = resnet_config(depth=10).model
    assert parameter_size(model) == size_of(model)


def test_no_deep_network_is_built(monkeypatch):
    """It took 157 s for 200 layers, in silence, before anything else."""
    built, create = [], module.create_model

    def count(model, **keywords):
        built.append(model.num_layers)
        return create(model, **keywords)

    monkeypatch.setattr(module, "create_model", count)
    values = {
        n: parameter_size(attention_config(**SMALL, num_layers=n, num_heads=4).model).values for n in (1, 2, 1000)
    }
    assert values[1000] == values[1] + 999 * (values[2] - values[1])
    assert max(built) == 2
