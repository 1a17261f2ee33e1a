"""Heads removed, reset and fixed: the network computes what the mathematics says, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.models import pruning
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.encodings.quadratic import covariance_penalty
from attn_cnn_jax.models.variables import join, split
from tests.support.networks import logits_of

ENCODINGS = {
    "learned and content": {"encoding": "learned", "content": True},
    "relative with small heads": {"encoding": "relative", "head_size": 3},
}
REMOVED = {0: {1}, 1: {0, 2, 3}}
COUNTS, LEFT = (4, 4), (3, 1)


def model_config(num_heads, **model):
    config = attention_config(
        dtype="float64", image_shape=(6, 4, 3), downsample=1, num_layers=2, hidden_size=8, intermediate_size=8
    ).to_dict()["model"]
    return ConfigDict(config | model | {"num_heads": num_heads})


def value_maps(parameters, layer):
    """The rows of a layer's output map, one block a head: `(h, D, O)`, as a view to write to."""
    return parameters[f"blocks.{layer}.attention.output.kernel"].reshape(COUNTS[layer], -1, 8)


@pytest.mark.usefixtures("float64", "promotion")
@pytest.mark.parametrize("name", ENCODINGS)
def test_the_pruned_network_computes_what_zero_value_maps_compute(name):
    network = create_model(model_config(4, **ENCODINGS[name]), rngs=nnx.Rngs(0))
    skeleton, parameters, statistics = split(network)
    images = jax.random.normal(jax.random.key(1), (3, 6, 4, 3), jnp.float64)

    zeroed = {name: np.array(array) for name, array in parameters.items()}
    for layer, heads in REMOVED.items():
        value_maps(zeroed, layer)[list(heads)] = 0
    expected = logits_of(join(skeleton, zeroed, statistics), images)

    smaller = split(abstract_model(model_config(LEFT, **ENCODINGS[name])))[0]
    pruned = pruning.prune(network, REMOVED)
    found = logits_of(join(smaller, pruned, statistics), images)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert np.abs(found - logits_of(network, images)).max() > 1e-3  # the heads did matter


@pytest.mark.usefixtures("float64", "promotion")
def test_every_parameter_with_heads_is_known():
    """A network of five heads instead of four differs in exactly the axes that pruning cuts: of all encodings."""
    ours = [name for name, kind in REGISTRY.items() if kind.__module__.startswith("attn_cnn_jax.")]
    for case in (*ENCODINGS.values(), *({"encoding": name} for name in ours)):
        four, five = (abstract_model(model_config(heads, **case, num_layers=1)) for heads in (4, 5))
        axes, sizes = pruning.head_axes(four.blocks[0].attention), split(five)[1]
        for key, array in split(four)[1].items():
            part = key.partition(".attention.")[2]
            changed = [axis for axis, size in enumerate(array.shape) if size != sizes[key].shape[axis]]
            assert changed == ([axes[part]] if part in axes else []), (case, key)


def test_what_is_fixed_is_positions_and_value_maps_of_all_other_heads():
    network = create_model(model_config(4, dtype="float32"), rngs=nnx.Rngs(0))
    found = pruning.fixed(network, {1: {2}}, positions=True, values=False)
    assert set(found) == {f"blocks.{n}.attention.position.{kind}" for n in (0, 1) for kind in ("centre", "spread")}
    assert found["blocks.0.attention.position.centre"].all()
    np.testing.assert_array_equal(found["blocks.1.attention.position.spread"], [True, True, False, True])
    found = pruning.fixed(network, {1: {2}}, positions=False, values=True)
    assert set(found) == {f"blocks.{n}.attention.output.kernel" for n in (0, 1)}
    np.testing.assert_array_equal(
        found["blocks.1.attention.output.kernel"][:, 0], np.repeat([True, True, False, True], 8)
    )
    assert pruning.fixed(network, {}, positions=False, values=False) == {}


NAMES = ("blocks.0.attention.position.spread", "blocks.1.attention.position.spread")


@pytest.mark.usefixtures("float64", "promotion")
def test_the_penalty_is_that_of_the_eigenvalues_of_all_layers_and_its_gradient_the_finite_difference():
    matrices = np.asarray(jax.random.normal(jax.random.key(3), (4, 2, 2), jnp.float64))
    of_layers = lambda m: dict(zip(NAMES, (m[:3], m[3:]), strict=True)) | {"blocks.0.attention.position.centre": m}  # noqa: E731
    penalty = jax.jit(lambda matrices: covariance_penalty(of_layers(matrices)))
    eigenvalues = np.linalg.eigvalsh(matrices @ matrices.swapaxes(-1, -2))
    np.testing.assert_allclose(penalty(matrices), np.mean((eigenvalues[:, 1] / eigenvalues[:, 0] - 1) ** 2), rtol=1e-9)
    gradient = np.asarray(jax.grad(penalty)(matrices))
    assert np.abs(gradient).max() > 1
    for index, moved in zip(np.ndindex(4, 2, 2), 1e-6 * np.eye(16).reshape(16, 4, 2, 2), strict=True):
        slope = (penalty(matrices + moved) - penalty(matrices - moved)) / 2e-6
        np.testing.assert_allclose(gradient[index], slope, rtol=1e-5, atol=1e-5)
    circles = jnp.stack([jnp.eye(2), 3 * jnp.eye(2)])
    np.testing.assert_array_equal(jax.grad(covariance_penalty)({NAMES[0]: circles})[NAMES[0]], 0 * circles)


SPREADS = [
    (-1.0, ""),  # the sign of s has no meaning
    (0.00317, ""),  # s^2 is 1.005e-5
    (0.00316, "uniform"),  # 0.9986e-5
    (np.diag([31.6, 1.0]), ""),  # condition number 998.6
    (np.diag([31.7, 1.0]), "a line: condition number 1005"),
    (np.diag([1.0, 0.0]), "a line: condition number inf"),
    (np.diag([0.00316, 0.00316]), "uniform"),
    (np.diag([0.00317, 0.001]), ""),
    (np.zeros((2, 2)), "uniform"),
    (np.diag([31.7, 1.0]) @ np.array([[0.6, 0.8], [-0.8, 0.6]]), "a line"),
]


def test_degenerate_by_the_criteria_of_the_release():
    for spread, reason in SPREADS:
        found = pruning.reason(spread)
        assert found.startswith(reason)
        assert bool(found) == bool(reason)


def test_heads_are_judged_from_the_central_pixel_of_an_image_that_is_not_square(monkeypatch):
    position = attention_config(encoding="learned", image_shape=(12, 8, 1), downsample=2, num_layers=1).model
    position, seen = create_model(position, rngs=nnx.Rngs(0)).blocks[0].attention.position, []
    monkeypatch.setattr(pruning.moments, "entropy", lambda weights: seen.append(weights) or np.zeros(len(weights)))
    pruning.reasons(position, (6, 4))
    (scores,) = position.position_terms(6, 4, jnp.arange(6)).values()
    expected = np.exp(scores - scores.max(axis=(-2, -1), keepdims=True))[:, 3, 2]
    np.testing.assert_allclose(seen[0], expected, rtol=1e-5)


def test_degenerate_heads_are_found_in_their_layers_by_their_attention():
    """Quadratic ones are in training/test_initialise.py. With content, a head without positions still attends."""
    for content, expected in ((False, {1: {2}}), (True, {})):
        config = model_config(4, dtype="float32", encoding="learned", content=content)
        network = create_model(config, rngs=nnx.Rngs(0))
        position = network.blocks[1].attention.position
        for weight in (position.row_weight, position.column_weight):
            weight[...] = weight[...].at[2].set(0)
        found = pruning.degenerate_heads(network, (6, 4))
        assert {layer: set(heads) for layer, heads in found.items()} == expected
        assert content or "uniform: entropy 3.1781 of at most 3.1781" in found[1][2]
