"""Learning rates and updates against the paper's formulas, written out as loops."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.training.optimizer import Matrices, create_optimizer, decayed, learning_rate, matrices
from attn_cnn_jax.training.step import losses, smoothed


def rates(config, num_epochs, steps_per_epoch):
    schedule = jax.jit(learning_rate(config, num_epochs, steps_per_epoch))
    return np.array([schedule(jnp.int32(step)) for step in range(num_epochs * steps_per_epoch)])


def test_warm_up_over_five_percent_then_half_a_cosine():
    total, warmup = 200, 10
    expected = [
        0.1 * step / warmup
        if step < warmup
        else 0.1 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        for step in range(total)
    ]
    got = rates(attention_config().optimizer, num_epochs=20, steps_per_epoch=10)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)
    assert got[0] == 0
    assert got[warmup] == pytest.approx(0.1)


def test_step_decay_divides_by_ten_after_80_150_and_250_of_300_epochs_with_warm_up_too():
    for warmup_fraction, first in ((0.0, [0.1] * 8), (0.1, [0, 0.1 / 3, 0.2 / 3, *[0.1] * 5])):
        config = resnet_config().optimizer
        config.update({"schedule": "step", "warmup_fraction": warmup_fraction})
        expected = [*first, *[0.01] * 7, *[0.001] * 10, *[0.0001] * 5]
        np.testing.assert_allclose(rates(config, 10, 3), expected, rtol=1e-5, atol=1e-9)
    config.warmup_fraction = 0.0
    np.testing.assert_allclose(rates(config, 1, 3), [0.1, 0.01, 0.0001], rtol=1e-5)  # two of them at once


def test_linear_decay_falls_to_zero_after_the_warm_up():
    config = attention_config().optimizer
    config.update({"schedule": "linear", "warmup_fraction": 0.2})
    expected = [0, 0.05, 0.1, 0.0875, 0.075, 0.0625, 0.05, 0.0375, 0.025, 0.0125]
    np.testing.assert_allclose(rates(config, 2, 5), expected, rtol=1e-5, atol=1e-9)
    assert learning_rate(config, 2, 5)(10) == 0


def optimizer_of(held=None, **values):
    """An optimizer at the constant learning rate 0.1, without weight decay unless given."""
    config = attention_config().optimizer
    config.update({"schedule": "constant", "warmup_fraction": 0.0, "weight_decay": 0.0} | values)
    return create_optimizer(config, learning_rate(config, 1, 10), held)


def test_weight_decay_joins_the_gradient_before_momentum_and_spares_centres_and_spreads():
    """SGD and Adam as PyTorch writes them, from the gradient `0.3 p`."""
    names = ("blocks.0.attention.position.centre", "blocks.0.attention.position.spread", "blocks.0.dense.kernel")
    for kind in ("sgd", "adam"):
        parameters = {name: jnp.array([1.0, -2.0]) for name in names}
        optimizer = optimizer_of(name=kind, weight_decay=0.5)
        state = optimizer.init(parameters)
        for _ in range(3):
            gradients = {name: 0.3 * p for name, p in parameters.items()}
            updates, state = optimizer.update(gradients, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        for name in names:
            p, mean, square, decay = np.array([1.0, -2.0]), 0, 0, 0.5 if name.endswith("kernel") else 0.0
            for step in (1, 2, 3):
                gradient = 0.3 * p + decay * p
                if kind == "sgd":
                    mean = 0.9 * mean + gradient
                    p = p - 0.1 * mean
                else:
                    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
                    p = p - 0.1 * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
            np.testing.assert_allclose(parameters[name], p, rtol=1e-5, err_msg=name)


def test_a_long_gradient_is_scaled_before_weight_decay_and_what_is_not_trained_does_not_count():
    parameters = {"a": jnp.array([1.0]), "b": jnp.array([1.0, 0.0]), "c": jnp.array([1.0, 1.0])}
    part = {"b": np.array([False, True]), "c": np.array([True, True])}
    for held, a, b, scaled_a, scaled_b in (
        ({"c": np.array(True)}, 30.0, 40.0, 1.2, 1.6),  # the largest norm is 2
        ({"c": np.array(True)}, 0.3, 0.4, 0.3, 0.4),
        (part, 30.0, 0.0, 2.0, 0.0),
    ):
        optimizer = optimizer_of(held, momentum=0.0, max_grad_norm=2.0, weight_decay=1e-4)
        gradients = {"a": jnp.array([a]), "b": jnp.array([b, 50.0 * (held is part)]), "c": jnp.array([1e6, -1e6])}
        updates, _ = optimizer.update(gradients, optimizer.init(parameters), parameters)
        found = [updates["a"][0], *updates["b"], *updates["c"]]
        expected = -0.1 * np.array([scaled_a + 1e-4, scaled_b + 1e-4, 0, 0, 0])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_every_parameter_is_decayed_but_positions_and_gates():
    network = attention_config(encoding="quadratic", content=True, gate=True, num_layers=1)
    for config, spared in ((network, ("centre", "spread", "gate")), (resnet_config(layers="attention"), ("centre",))):
        by_name = decayed(split(abstract_model(config.model))[1])
        found = {name for name, value in by_name.items() if not value}
        assert found == {name for name in by_name if name.endswith((".centre", ".spread", ".gate"))}
        assert {name.rpartition(".")[2] for name in found} >= set(spared)
    positions = {"rope": {"frequency"}, "rope_mixed": {"frequency"}, "alibi": {"slope"}, "fire": {"scale", "threshold"}}
    for encoding, spared in positions.items():  # constants among them, which decay would shrink
        by_name = decayed(split(abstract_model(attention_config(encoding=encoding, num_layers=1).model))[1])
        assert {name.rpartition(".")[2] for name, value in by_name.items() if not value} == spared


def test_biases_and_scales_of_norms_have_a_learning_rate_of_their_own():
    """Every optimizer's updates of them, weight decay included, are multiplied; all others stay, FIRE's scale too."""
    fast = ["classifier.bias", "norm.scale", "stem_norm.bias", "blocks.0.attention_norm.scale", "blocks.1.norm2.scale"]
    names = [*fast, "blocks.0.dense.kernel", "classifier.kernel", "blocks.0.attention.position.row.scale"]
    names.append("blocks.0.attention.position.content_bias")
    parameters = {name: jnp.array([[1.0, -2.0], [0.5, n]]) for n, name in enumerate(names)}
    gradients, fixed = {name: 0.3 * p + 1 for name, p in parameters.items()}, {"classifier.bias": np.array(True)}
    shaped = {"blocks.0.dense.kernel": Matrices((2, 2), optax.contrib.MuonDimensionNumbers(0, 1))}
    config = attention_config().optimizer
    for kind in ("sgd", "adam", "muon"):
        updates, states = [], []
        for factor in (1.0, 8.0):
            config.update({"name": kind, "weight_decay": 0.1, "bias_rate": factor})
            rule = create_optimizer(config, lambda step: 0.1, fixed, shaped=shaped)
            states.append(rule.init(parameters))
            updates.append(jax.jit(rule.update)(gradients, states[-1], parameters)[0])
        chex.assert_trees_all_equal(*map(jax.tree.leaves, states))
        for name in names:
            factor = 8 if name in fast else 1
            np.testing.assert_allclose(updates[1][name], factor * updates[0][name], rtol=1e-6, err_msg=name)
            assert np.any(updates[1][name]) == (name not in fixed)
        if kind == "sgd":
            expected = -8 * 0.1 * (0.3 * parameters["norm.scale"] + 1 + 0.1 * parameters["norm.scale"])
            np.testing.assert_allclose(updates[1]["norm.scale"], expected, rtol=1e-6)


def orthogonalised(matrix, steps=5):
    """Newton-Schulz as Muon writes it, one matrix at a time: all singular values near 1, for `(d, o)`."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(steps):
        product = x @ x.T
        x = a * x + (b * product + c * product @ product) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@pytest.mark.parametrize(
    "config",
    [
        attention_config(
            image_shape=(8, 8, 3), num_layers=2, num_heads=3, head_size=3, hidden_size=6, intermediate_size=8
        ),
        resnet_config(depth=10, width=2, image_shape=(8, 8, 3)),
    ],
    ids=["attention", "resnet"],
)
def test_muon_makes_the_update_of_every_head_and_convolution_orthogonal_and_leaves_the_rest_to_adam(config):
    """Weight decay is decoupled, as published: `w -= learning rate * decay * w`, but for spared parameters."""
    network = create_model(config.model, rngs=nnx.Rngs(0))
    parameters = {name: np.asarray(array) for name, array in split(network)[1].items()}
    config.optimizer.update({"name": "muon", "momentum": 0.9, "weight_decay": 0.3})
    optimizer = create_optimizer(config.optimizer, lambda step: 0.1, shaped=matrices(network))
    adam = optax.adamw(0.1, weight_decay=0, nesterov=True)
    update, update_of_adam = jax.jit(optimizer.update), jax.jit(adam.update)
    state, of_adam = optimizer.init(parameters), adam.init(parameters)
    generator = np.random.default_rng(0)
    momentum = {name: 0.0 for name in parameters}
    for step in (1, 2):
        gradient = {name: generator.normal(size=array.shape).astype(np.float32) for name, array in parameters.items()}
        updates, state = update(gradient, state, parameters)
        with jax.numpy_dtype_promotion("standard"):
            expected, of_adam = update_of_adam(gradient, of_adam, parameters)
        for name, moved in updates.items():
            decay = 0 if name.endswith((".centre", ".spread")) else 0.1 * 0.3 * parameters[name]
            if not (name.startswith("blocks.") and name.endswith(".kernel")):
                np.testing.assert_allclose(moved, expected[name] - decay, rtol=1e-5, atol=1e-8, err_msg=name)
                continue
            momentum[name] = 0.9 * momentum[name] + 0.1 * gradient[name]
            ahead = 0.9 * momentum[name] / (1 - 0.9 ** (step + 1)) + 0.1 * gradient[name] / (1 - 0.9**step)
            axis = {"attention.value.kernel": 1, "attention.output.kernel": 0}.get(name.split(".", 2)[2])
            whole = ahead.reshape(-1, ahead.shape[-1])  # a convolution maps all pixels and channels of a patch
            parts = [whole] if axis is None else np.split(whole, 3, axis)
            by_part = [-0.1 * 0.2 * math.sqrt(max(part.shape)) * orthogonalised(part) for part in parts]
            found = (moved + decay).reshape(whole.shape)
            np.testing.assert_allclose(found, np.concatenate(by_part, axis or 0), atol=2e-5, err_msg=name)
    assert set(matrices(network)) == {name for name in parameters if name.startswith("b") and name.endswith("kernel")}


def test_smoothed_labels_are_those_of_optax():
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(5, 7)).astype(np.float32), np.array([0, 6, 3, 3, 1])
    loss, _ = losses(jnp.asarray(logits), labels)
    expected = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, 7), 0.2))
    np.testing.assert_allclose(smoothed(loss, jnp.asarray(logits), 0.2), expected, rtol=1e-6)
