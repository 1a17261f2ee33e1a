"""Every parameter of every network starts from the law that the paper's release draws it from."""

import math

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.models import variables

# One layer and many heads: a thousand centres and spreads show a standard deviation to a few percent.
SIZES = {"image_shape": (8, 12, 3), "num_layers": 1, "num_heads": 1000, "hidden_size": 8, "intermediate_size": 64}
NETWORKS = {
    "quadratic": attention_config(**SIZES),
    "generalised": attention_config(**SIZES, encoding="quadratic_generalized"),
    "learned and content": attention_config(**SIZES, encoding="learned", content=True, gate=True, head_size=4),
    "relative": attention_config(**SIZES, encoding="relative", head_size=4),
    "absolute": attention_config(**SIZES, encoding="absolute_learned"),
    "resnet": resnet_config(depth=10, image_shape=(8, 8, 3)),
}


def law(name, parameters):
    """What a parameter is drawn from: a distribution, or a number where it starts at one value."""
    path, _, kind = name.rpartition(".")
    if "norm" in path:
        return {"scale": 1.0, "bias": 0.0}[kind]
    if kind == "gate":  # open for positions, as in ConViT
        return 1.0
    if kind in ("kernel", "bias"):
        return uniform(math.prod(parameters[f"{path}.kernel"].shape[:-1]))
    if kind in ("row_weight", "column_weight", "position_key", "content_bias", "position_bias"):
        return uniform(parameters[name].shape[1])
    # Of a spread it is that of the difference from one, or from the unit matrix.
    deviations = {"centre": 2, "spread": 0.01, "row": 1, "column": 1, "position": 1}
    return stats.norm(0, deviations[kind])


def uniform(fan_in):
    bound = 1 / math.sqrt(fan_in)
    return stats.uniform(-bound, 2 * bound)


@pytest.fixture(scope="module", params=NETWORKS)
def parameters(request):
    config = NETWORKS[request.param].model
    key = jax.random.key(7, impl="unsafe_rbg")  # a generator of random bits that compiles faster than the default
    _, parameters, _ = variables.split(create_model(config, rngs=nnx.Rngs(key)))
    return {name: np.asarray(value) for name, value in parameters.items()}


def draws(name, value):
    """The random part of a parameter, flat."""
    if name.endswith("spread"):
        value = value - (1 if value.ndim == 1 else np.eye(2))
    return value.ravel()


def test_every_parameter_follows_its_law_and_no_draw_repeats(parameters):
    """Kolmogorov-Smirnov on up to 50,000 entries, at p = 1e-4 for some forty parameters; bounds, mean, deviation."""
    seen = {}
    for name, value in parameters.items():
        expected = law(name, parameters)
        if isinstance(expected, float):
            assert (value == expected).all(), name
            continue
        x, deviation = draws(name, value), expected.std()
        assert stats.kstest(x[:50_000], expected.cdf).pvalue > 1e-4, name
        if expected.dist.name == "uniform":
            # Of n draws the largest falls short of the bound b by more than 20 b / n once in e^10 times.
            bound, slack = expected.support()[1], 20 / value.size
            assert np.abs(value).max() <= np.float32(bound), name
            assert min(value.max(), -value.min()) >= bound * (1 - slack), name
        else:
            assert abs(x.mean() - expected.mean()) < 4 * deviation / math.sqrt(x.size), name
            assert abs(x.std() / deviation - 1) < 4 / math.sqrt(2 * x.size), name
        # Uniform draws scaled to one, normal ones to deviation one: equal keys would show as equal numbers.
        first = tuple(np.round(x[:4] / deviation, 3))
        assert first not in seen, f"{name} starts like {seen.get(first)}"
        seen[first] = name
