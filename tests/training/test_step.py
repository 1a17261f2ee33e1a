"""The step: the same numbers on any number of devices, however many a dispatch does."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, resnet_config
from attn_cnn_jax.data.augment import augment, normalise, operate
from attn_cnn_jax.data.sets import SPECS, Split
from attn_cnn_jax.models.variables import join
from attn_cnn_jax.runs import directory
from attn_cnn_jax.training.mesh import data_mesh, place
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.step import (
    MAGNITUDE,
    create_train_steps,
    crop_size,
    epoch_order,
    initial_state,
    losses,
    most_steps,
    step_keys,
)

SPEC = SPECS["cifar10"]


def small_config(network):
    if network == "resnet":
        config = resnet_config(depth=10, width=8, image_shape=(8, 8, 3))
        config.optimizer.learning_rate = 0.002  # where a network of this size does not blow rounding up
    else:
        config = attention_config(
            image_shape=(8, 8, 3), hidden_size=16, intermediate_size=16, num_layers=1, num_heads=4, encoding=network
        )
        config.optimizer.learning_rate = 0.05
    config.train.batch_size = 32 if network == "resnet" else 8
    return config


def pictures(count):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return Split(images, generator.integers(0, 10, count).astype(np.int32))


def prepare(config, num_devices, count=40, crop=None):
    """State, data and compiled functions on the first devices."""
    mesh, state, *functions = prepared(directory.to_json(config), num_devices, count, crop)
    return place(state, mesh), place(pictures(count), mesh), *functions


@functools.cache
def prepared(configuration, num_devices, count, crop):
    """Traced once for all tests that take the same steps."""
    config, mesh = directory.from_json(configuration), data_mesh(jax.devices()[:num_devices])
    optimizer = create_optimizer(config.optimizer, learning_rate(config.optimizer, 4, count // config.train.batch_size))
    skeleton, state = initial_state(create_model(config.model, rngs=nnx.Rngs(0)), optimizer)
    train_steps = create_train_steps(config, mesh, skeleton, optimizer, SPEC, crop)
    return mesh, jax.device_get(state), train_steps, skeleton, optimizer


def losses_of_steps(config, num_devices, count=20):
    state, data, train_steps, *_ = prepare(config, num_devices, count=5 * config.train.batch_size)
    found = []
    at_once = min(5, most_steps(config, data_mesh(jax.devices()[:num_devices])))
    for _ in range(count // at_once):
        state, results = train_steps(state, data, jnp.int32(at_once))
        found += list(np.asarray(results["loss"][:at_once]))
    return np.array(found), jax.device_get(state)


@pytest.mark.parametrize(("network", "devices"), [("quadratic", 8), ("pape", 2), ("resnet", 2)])
def test_same_losses_on_several_devices_with_dropout_and_augmentation(network, devices):
    config = small_config(network)
    # A ReLU that flips blows rounding up: in the ResNet, with some versions of JAX, from the fifth step on.
    count = 4 if network == "resnet" else 20
    one, state = losses_of_steps(config, 1, count)
    assert state.step == count
    np.testing.assert_allclose(losses_of_steps(config, devices, count)[0], one, atol=1e-5, rtol=0)


def test_steps_gather_augment_and_update_however_many_a_dispatch_does():
    config = small_config("quadratic")
    config.augment.update({"border": "mirrored", "operations": 1})
    state, data, train_steps, skeleton, optimizer = prepare(config, 1, crop=(6, 4))
    parameters, optimizer_state = jax.tree.map(jnp.copy, (state.parameters, state.optimizer))

    def mean_loss(parameters, x, labels, key):
        return losses(join(skeleton, parameters, {})(x, key=key)[0], labels)[0].mean()

    @jax.jit
    def one_step(parameters, optimizer_state, x, labels, key):
        loss, gradients = jax.value_and_grad(mean_loss)(parameters, x, labels, key)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
        return loss, optax.apply_updates(parameters, updates), optimizer_state

    found, expected = [], []
    for count in (1, 3, 1, 2):  # an epoch has five steps
        state, results = train_steps(state, data, jnp.int32(count))
        found += results["loss"][:count].tolist()
    for step in range(7):
        epoch, place_in_epoch = divmod(step, 5)
        indices = epoch_order(config.seed, epoch, 40)[place_in_epoch * 8 : place_in_epoch * 8 + 8]
        augment_key, dropout_key = step_keys(config.seed, step)
        images = augment(
            augment_key, data.images[indices], crop_padding=4, crop_size=(6, 4), border="mirrored", flip=True
        )
        images = operate(jax.random.fold_in(augment_key, 3), images, count=1, magnitude=MAGNITUDE)
        x = normalise(images, SPEC.mean, SPEC.std)
        loss, parameters, optimizer_state = one_step(parameters, optimizer_state, x, data.labels[indices], dropout_key)
        expected.append(float(loss))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    chex.assert_trees_all_close(state.parameters, parameters, rtol=1e-3, atol=1e-5)


def test_crops_grow_evenly_from_whole_patches_to_whole_images():
    config = small_config("quadratic")
    config.model.update({"image_shape": (32, 40, 3), "downsample": 4})
    config.augment.crop_fraction, config.train.num_epochs = 0.75, 12
    sizes = [crop_size(config, epoch) for epoch in range(12)]
    assert [rows for rows, _ in sizes] == [24] * 3 + [28] * 6 + [32] * 3
    assert [columns for _, columns in sizes] == [32] * 3 + [36] * 6 + [40] * 3
    config.augment.crop_fraction, config.train.num_epochs = 0.01, 1
    assert crop_size(config, 0) == (4, 4)
    config.augment.crop_fraction = 1.0
    assert crop_size(config, 0) == (32, 40)
    resnet = small_config("resnet")
    resnet.augment.crop_fraction, resnet.train.num_epochs = 0.6, 4
    assert [crop_size(resnet, epoch)[0] for epoch in range(4)] == [5, 6, 7, 8]


def test_all_matrix_products_have_the_configured_precision():
    config = small_config("quadratic")
    config.train.matmul_precision = "high"
    state, data, train_steps, *_ = prepare(config, 1)
    lowered = train_steps.lower(state, data, jnp.int32(1))
    products = [line for line in lowered.as_text().splitlines() if "dot_general" in line]
    assert {frozenset(re.findall(r"HIGHEST|HIGH", line)) for line in products} == {frozenset({"HIGH"})}


@pytest.mark.usefixtures("threefry")
def test_random_numbers_are_those_of_earlier_versions():
    """A run that goes on after an update has to draw what it would have drawn: written down from version 0.1."""
    assert epoch_order(3, jnp.int32(2), 8).tolist() == [6, 5, 3, 7, 4, 0, 1, 2]
    keys = [jax.random.key_data(key).tolist() for key in step_keys(3, jnp.int32(5))]
    assert keys == [[543421569, 3302109671], [1594766187, 4033659082]]


def test_a_step_that_blows_up_is_reported():
    state, data, train_steps, *_ = prepare(small_config("quadratic"), 1)
    parameters, momentum = jax.device_get((state.parameters, state.optimizer))
    bad_parameters = parameters | {"classifier.bias": np.full(10, np.nan, np.float32)}
    bad_momentum = jax.tree.map(lambda x: np.full_like(x, np.inf) if x.shape == (10,) else x, momentum)
    for broken, loss, finite in (
        (state._replace(parameters=bad_parameters), False, False),
        # The loss is fine, the update is not; the learning rate of step 0 is 0.
        (state._replace(parameters=parameters, optimizer=bad_momentum, step=np.int32(1)), True, False),
        (state._replace(parameters=parameters, optimizer=momentum, step=np.int32(0)), True, True),
    ):
        _, results = train_steps(place(jax.device_get(broken), data_mesh(jax.devices()[:1])), data, jnp.int32(1))
        assert (np.isfinite(results["loss"][0]), results["finite"]) == (loss, finite)


def test_bfloat16_compute_keeps_parameters_loss_and_optimizer_in_float32():
    config = small_config("quadratic")
    config.model.dtype = "bfloat16"
    # Flax's LayerNorm promotes bfloat16 to float32 by itself.
    with jax.numpy_dtype_promotion("standard"):
        state, data, train_steps, *_ = prepare(config, 1)
        state, results = train_steps(state, data, jnp.int32(5))
    assert {x.dtype for x in jax.tree.leaves((state.parameters, state.optimizer)) if x.ndim} == {jnp.dtype("float32")}
    wide, _ = losses_of_steps(small_config("quadratic"), 1, 5)
    np.testing.assert_allclose(results["loss"][:5], wide, atol=0.05)
    assert not np.array_equal(results["loss"][:5], wide)
