"""One training step and one evaluation, as pure functions over a mesh of all devices.

Everything random is a function of `(seed, step)`: the order of the pictures in an epoch, augmentation,
dropout. The arrays are global, so that the numbers are the same for any number of devices. Of several seeds
each function is mapped over them (seeds.py).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from attn_cnn_jax.data.augment import augment, normalise
from attn_cnn_jax.data.sources import Spec
from attn_cnn_jax.models.encodings.quadratic_generalized import covariance_penalty
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.runs.seeds import over_seeds
from attn_cnn_jax.training.optimizer import all_finite

MAX_STEPS_A_DISPATCH = 256


def initial_state(model: nnx.Module, optimizer: optax.GradientTransformation) -> tuple[Skeleton, TrainState]:
    """A network taken apart for training, before the first step."""
    skeleton, parameters, statistics = split(model)
    return skeleton, TrainState(jnp.int32(0), parameters, statistics, optimizer.init(parameters))


class Pictures(NamedTuple):
    """A data set on the devices: images `(n, H, W, C)` uint8, labels `(n,)` int32; replicated."""

    images: jax.Array
    labels: jax.Array


def data_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """All devices of all processes (or those given) along one axis, `data`, over which batches are split."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def place(tree: Any, mesh: Mesh) -> Any:
    """Puts the same host values on every device of every process."""

    def put(x):
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, replicated(mesh), lambda index: x[index])

    return jax.tree.map(put, tree)


def split_over_devices(mesh: Mesh, x: jax.Array) -> jax.Array:
    """Splits the first axis of an array inside a jitted function over the mesh."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("data")))


def epoch_order(seed: int | jax.Array, epoch: jax.Array, num_pictures: int) -> jax.Array:
    """The order in which an epoch visits the training set: a permutation, `(num_pictures,)`."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0), epoch)
    return jax.random.permutation(key, num_pictures)


def step_keys(seed: int | jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Random keys of one step: for augmentation and for dropout."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)
    return tuple(jax.random.split(key))


def losses(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy (in nats) and whether the first choice is right, per picture: `(b,)` each."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return loss, logits.argmax(axis=-1) == labels


def most_steps(config: ConfigDict) -> int:
    """How many steps one dispatch may do.

    On CPUs XLA computes the weight gradient of a convolution twenty times slower inside a loop: one for a ResNet.
    """
    convolutions = config.model.name == "resnet" and config.model.layers == "convolution"
    return 1 if convolutions and jax.default_backend() == "cpu" else MAX_STEPS_A_DISPATCH


def create_train_steps(
    config: ConfigDict, mesh: Mesh, skeleton: Skeleton, optimizer: optax.GradientTransformation, spec: Spec
) -> Callable[[TrainState, Pictures, int], tuple[TrainState, dict[str, jax.Array]]]:
    """Compiles `train_steps(state, pictures, count)`: many steps in one dispatch, `state` donated.

    The steps must lie in one epoch, at most `most_steps(config)`. Incomplete batches at the end of an
    epoch are left out; the next epoch's order is another one.

    Args:
      spec: the data set's `Spec` (mean and standard deviation of its pictures).

    Returns:
      The function. Its second result has, for the steps done, `loss` and `accuracy` (`(256,)`, mean over
      the batch without penalties, the rest zero) and `finite`, whether all losses and the parameters are.
      Of several seeds, all these have a leading axis over them.
    """
    batch_size, weight = config.train.batch_size, config.optimizer.covariance_penalty
    looped = most_steps(config) > 1

    def one_step(seed: int | jax.Array, state: TrainState, pictures: Pictures, indices: jax.Array):
        augment_key, dropout_key = step_keys(seed, state.step)
        indices = split_over_devices(mesh, indices)
        images = augment(augment_key, pictures.images[indices], **config.augment)
        images = normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype))
        labels = pictures.labels[indices]

        def mean_loss(parameters):
            model = join(skeleton, parameters, state.statistics)
            loss, right = losses(model(images, key=dropout_key)[0], labels)
            loss = loss.mean()
            penalty = weight * covariance_penalty(parameters) if weight else 0.0
            return loss + penalty, (loss, right.mean(dtype=jnp.float32), split(model)[2])

        grad = jax.value_and_grad(mean_loss, has_aux=True)
        (_, (loss, accuracy, statistics)), gradients = grad(state.parameters)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return TrainState(state.step + 1, parameters, statistics, optimizer_state), loss, accuracy

    def train_steps(seed: int | jax.Array, state: TrainState, pictures: Pictures, count: jax.Array):
        num_pictures = pictures.labels.shape[0]
        steps_per_epoch = num_pictures // batch_size
        order_seed = config.seed if config.train.same_data_order else seed
        order = epoch_order(order_seed, state.step // steps_per_epoch, num_pictures)
        first = state.step % steps_per_epoch

        def body(n, carry):
            state, loss, accuracy = carry
            indices = jax.lax.dynamic_slice_in_dim(order, (first + n) * batch_size, batch_size)
            state, step_loss, step_accuracy = one_step(seed, state, pictures, indices)
            return state, loss.at[n].set(step_loss.astype(loss.dtype)), accuracy.at[n].set(step_accuracy)

        zeros = jnp.zeros(MAX_STEPS_A_DISPATCH, jnp.float32)
        start = (state, zeros, zeros)
        state, loss, accuracy = jax.lax.fori_loop(0, count, body, start) if looped else body(0, start)
        finite = jnp.isfinite(loss).all() & all_finite(state.parameters)
        return state, {"loss": loss, "accuracy": accuracy, "finite": finite}

    return jax.jit(over_seeds(config, train_steps, looped=looped), donate_argnums=0, out_shardings=replicated(mesh))


def create_evaluate(
    config: ConfigDict, mesh: Mesh, skeleton: Skeleton, spec: Spec
) -> Callable[[TrainState, Pictures], dict[str, jax.Array]]:
    """Compiles `evaluate(state, pictures)`: mean loss and accuracy, every picture counted once.

    The last batch is filled up with pictures that don't count. Of several seeds: one number each.
    """
    devices = mesh.size
    batch_size = -(-config.train.eval_batch_size // devices) * devices

    def evaluate(seed: int | jax.Array, state: TrainState, pictures: Pictures):
        del seed  # nothing here is random
        model = merged(join(skeleton, state.parameters, state.statistics))
        count = pictures.labels.shape[0]

        def body(sums, start):
            positions = split_over_devices(mesh, start + jnp.arange(batch_size))
            counts = positions < count
            indices = jnp.minimum(positions, count - 1)
            images = normalise(pictures.images[indices], spec.mean, spec.std, jnp.dtype(config.model.dtype))
            loss, right = losses(model(images)[0], pictures.labels[indices])
            loss_sum, right_sum = sums
            loss_sum += jnp.where(counts, loss, 0).sum().astype(loss_sum.dtype)
            return (loss_sum, right_sum + (counts & right).sum(dtype=jnp.int32)), None

        starts = jnp.arange(0, count, batch_size)
        (loss, right), _ = jax.lax.scan(body, (jnp.float32(0), jnp.int32(0)), starts)
        return {"loss": loss / count, "accuracy": right.astype(jnp.float32) / count}

    return jax.jit(over_seeds(config, evaluate), out_shardings=replicated(mesh))
