"""The moving average of parameters against its formula, and what stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.training.averaging import averaged, iterate
from attn_cnn_jax.training.optimizer import create_optimizer

START = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}


def gradients(at):
    return jax.tree.map(lambda x: 0.3 * x + 1, at)


def steps(optimizer, count):
    """Parameters and iterate after each step."""
    parameters, state, found = START, optimizer.init(START), []
    for _ in range(count):
        updates, state = jax.jit(optimizer.update)(gradients(iterate(state, parameters)), state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        found.append((parameters, iterate(state, parameters)))
    return found


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_parameters_are_the_average_of_what_the_optimizer_does_alone(decay):
    optimizer = optax.sgd(0.1, momentum=0.9)
    alone, average = [parameters for parameters, _ in steps(optimizer, 40)], START
    for t, (parameters, moved) in enumerate(steps(averaged(optimizer, decay), 40)):
        share = min(decay, (1 + t) / (10 + t))
        average = jax.tree.map(lambda a, x, d=share: d * np.asarray(a) + (1 - d) * np.asarray(x), average, alone[t])
        for name in START:
            np.testing.assert_allclose(moved[name], alone[t][name], rtol=1e-6)
            np.testing.assert_allclose(parameters[name], average[name], rtol=1e-5)


def test_a_frozen_parameter_stays_as_it_is_to_the_bit():
    config = attention_config().optimizer
    config.update({"average_decay": 0.7, "learning_rate": 0.1})
    optimizer = create_optimizer(config, lambda step: 0.1, frozen=["a"])
    for parameters, moved in steps(optimizer, 10):
        np.testing.assert_array_equal(parameters["a"], START["a"])
        np.testing.assert_array_equal(moved["a"], START["a"])
    assert parameters["b"] != START["b"]


def test_without_a_decay_there_is_no_second_copy():
    config = attention_config().optimizer
    sizes = []
    for decay in (0.0, 0.9):
        config.average_decay = decay
        state = create_optimizer(config, lambda step: 0.1).init(START)
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(state)))
    assert sizes[1] == sizes[0] + 3 + 1  # the iterate, and the number of steps
