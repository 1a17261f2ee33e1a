"""The size of a network, told from networks of one and two layers."""

import chex
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.config import size as module
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.config.size import parameter_size, size_of
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.variables import split

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


@pytest.mark.parametrize("encoding", REGISTRY)
def test_an_abstract_network_has_the_shapes_of_the_real_one(encoding):
    model = attention_config(**SMALL, num_layers=2, num_heads=4, encoding=encoding).model
    (skeleton, *abstract), (expected, *real) = (
        split(network) for network in (abstract_model(model), create_model(model, rngs=nnx.Rngs(0)))
    )
    assert skeleton == expected
    chex.assert_trees_all_equal_shapes_and_dtypes(abstract, real)


def test_a_resnet_is_looked_at_whole():
    model = resnet_config(depth=10).model
    assert parameter_size(model) == size_of(model)


def test_no_deep_network_is_built(monkeypatch):
    """It took 157 s for 200 layers, in silence, before anything else."""
    built, create = [], module.abstract_model

    def count(model):
        built.append(model.num_layers)
        return create(model)

    monkeypatch.setattr(module, "abstract_model", count)
    values = {
        n: parameter_size(attention_config(**SMALL, num_layers=n, num_heads=4).model).values for n in (1, 2, 1000)
    }
    assert values[1000] == values[1] + 999 * (values[2] - values[1])
    assert max(built) == 2
