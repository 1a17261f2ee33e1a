"""Training steps, many of them in one dispatch over a mesh of devices.

Everything random is a function of `(seed, step)`: the order of the images in an epoch, augmentation, dropout. The
arrays are global, so that the numbers are the same, to rounding, for any number of devices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from attn_cnn_jax import compiling
from attn_cnn_jax.arrays import Activations, Arrays, Grid, Key, Labels
from attn_cnn_jax.data.augment import augment, epoch_order, normalise, operate
from attn_cnn_jax.data.sets import Spec, Split
from attn_cnn_jax.models.attention.layer import for_platform
from attn_cnn_jax.models.encodings.quadratic import covariance_penalty
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs import selfcheck
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.feed import MAX_STEPS_PER_DISPATCH, Chunk
from attn_cnn_jax.training.mesh import platform_of, replicated, rows_of_process, share, split_along

MAGNITUDE = 0.5  # of the strongest augmentation


def initial_state(model: nnx.Module, optimizer: optax.GradientTransformation) -> tuple[Skeleton, TrainState]:
    """Takes a network apart for training; returns its skeleton and the state before the first step."""
    skeleton, parameters, statistics = split(model)
    return skeleton, TrainState(jnp.int32(0), parameters, statistics, optimizer.init(parameters))


def step_keys(seed: int, step: int | Int[Array, ""]) -> tuple[Key, Key]:
    """Returns the random keys of one step: for augmentation and for dropout."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)
    augment_key, dropout_key = jax.random.split(key)
    return augment_key, dropout_key


def losses(logits: Float[Array, "b classes"], labels: Labels) -> tuple[Float[Array, " b"], Bool[Array, " b"]]:
    """Returns the cross-entropy (nats) and whether the first choice is right, per image."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return loss, logits.argmax(axis=-1) == labels


def smoothed(loss: Float[Array, " b"], logits: Float[Array, "b classes"], smoothing: float) -> Float[Array, " b"]:
    """Returns the cross-entropy with labels of which a share is spread over all classes evenly, given that without."""
    return (1 - smoothing) * loss - smoothing * jax.nn.log_softmax(logits).mean(axis=-1)


def crop_size(config: ConfigDict, epoch: int) -> Grid:
    """Returns height and width of the crops of an epoch, from 0, in pixels: whole patches, at least one.

    They grow evenly, from `config.augment.crop_fraction` of the image's sides to these themselves in the last epoch, by
    an eighth at a time: steps are compiled for every size.
    """
    patch, first = config.model.get("downsample", 1), config.augment.crop_fraction
    share = first + (1 - first) * epoch / max(1, config.train.num_epochs - 1)
    rows, columns = (max(1, round(round(8 * share) / 8 * n / patch)) for n in config.model.image_shape[:2])
    return rows * patch, columns * patch


def most_steps(config: ConfigDict, mesh: Mesh) -> int:
    """Returns how many steps one dispatch may do.

    One for convolutions on CPUs: there XLA computes their weight gradient twenty times slower inside a loop.
    """
    convolutions = config.model.name == "resnet" and config.model.layers == "convolution"
    return 1 if convolutions and platform_of(mesh) == "cpu" else MAX_STEPS_PER_DISPATCH


def gathered(config: ConfigDict, mesh: Mesh, train_set: Split, step: jax.Array) -> Callable[[Any], Split]:
    """Returns `batch(n)`: the batch of n steps after `step`, in the same epoch, out of the whole training set."""
    batch_size, num_images = config.train.batch_size, train_set.labels.shape[0]
    steps_per_epoch = num_images // batch_size
    order = epoch_order(config.seed, step // steps_per_epoch, num_images)
    first = step % steps_per_epoch

    def batch(n):
        indices = jax.lax.dynamic_slice_in_dim(order, (first + n) * batch_size, batch_size)
        indices = jax.lax.with_sharding_constraint(indices, split_along(mesh, 0))
        return Split(train_set.images[indices], train_set.labels[indices])

    return batch


def streamed(chunk: Chunk, step: jax.Array) -> Callable[[Any], Split]:
    """Returns `batch(n)`: the batch of n steps after `step`, out of the chunk that holds it."""
    first = step - chunk.first
    return lambda n: Split(*(jax.lax.dynamic_index_in_dim(a, first + n, keepdims=False) for a in chunk[:2]))


def loss_of(config: ConfigDict, mesh: Mesh, skeleton: Skeleton) -> Callable:
    """Returns what a step minimises: `loss(parameters, statistics, images, labels, key)` of normalised images.

    Beside it, the mean cross-entropy (nats), the accuracy of the batch and the new running statistics.
    """
    weight, smoothing = config.optimizer.covariance_penalty, config.train.label_smoothing

    def mean_loss(parameters: Arrays, statistics: Arrays, images: Activations, labels: Labels, key: Key | None):
        model: Any = for_platform(join(skeleton, parameters, statistics), platform_of(mesh), mesh.size)
        logits = model(images, key=key)[0]
        loss, right = losses(logits, labels)
        learned = smoothed(loss, logits, smoothing) if smoothing else loss
        penalty = weight * covariance_penalty(parameters) if weight else 0.0
        return learned.mean() + penalty, (loss.mean(), right.mean(dtype=jnp.float32), split(model)[2])

    return mean_loss


def check_gradient(
    config: ConfigDict, mesh: Mesh, skeleton: Skeleton, state: TrainState, spec: Spec, crop: Grid
) -> bool:
    """Holds loss and gradient, compiled as for a step with such crops, against NumPy; raises UserError if they differ.

    Of noise: a few images repeated to a batch. Without dropout, whose masks would differ between those repeated.
    Returns False where NumPy cannot follow the network: a line has said so.
    """
    size, shape = config.train.batch_size, (*crop, config.model.image_shape[2])
    images = selfcheck.noise(size, shape)
    labels = np.arange(len(images), dtype=np.int32) % config.model.num_classes
    drops = any(config.model.get(name, 0.0) for name in ("dropout", "attention_dropout"))
    key = None if drops else jax.random.key(0)
    of_loss = loss_of(config, mesh, skeleton)

    def loss(parameters, statistics, images, labels):
        x = normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype))
        return of_loss(parameters, statistics, x, labels, key)

    gradient = in_precision(config.train.matmul_precision, jax.value_and_grad(loss, has_aux=True))
    compiled = compiling.jit(gradient, platform=platform_of(mesh), out_shardings=replicated(mesh))
    mine = rows_of_process(size, mesh)
    batch = (share(selfcheck.repeated(each, size)[mine], mesh) for each in (images, labels))
    (value, _), gradients = compiled(state.parameters, state.statistics, *batch)
    arrays = jax.device_get((state.parameters, state.statistics))
    known = selfcheck.expected(jax.value_and_grad(loss, has_aux=True), *arrays, images, labels)
    if known is None:
        return False
    model, train = config.model, config.train
    tolerance = selfcheck.allowed(model.dtype, train.matmul_precision, platform_of(mesh))
    selfcheck.compare("the training loss of noise", value, known[0][0], tolerance)
    selfcheck.compare_gradients(jax.device_get(gradients), known[1], tolerance, kinks=model.name == "resnet")
    return True


def create_train_steps(
    config: ConfigDict,
    mesh: Mesh,
    skeleton: Skeleton,
    optimizer: optax.GradientTransformation,
    spec: Spec,
    crop: Grid | None = None,
) -> compiling.Program:
    """Returns the jitted `train_steps(state, data, count)`: many steps in one dispatch, `state` donated.

    A step augments its batch, with crops of the size `crop` or that of the images, and updates the parameters by the
    gradient of the mean loss, of smoothed labels where `config.train` says so, plus the covariance penalty where
    `config.optimizer` has one. Mean and standard deviation of `spec` normalise the images; the devices of `mesh` share
    a batch evenly.

    The steps must be in one epoch, at most `most_steps(config, mesh)`. `data` is the whole training set, `Split`,
    or the `Chunk` that has the batches of these steps: the numbers are the same. Incomplete batches at the end of an
    epoch are left out; the next epoch has another order.

    The second result has, for the steps done, `loss` and `accuracy` (`(256,)`, zero-padded; means over the batch, of
    labels that are not smoothed and without penalty) and `finite`, whether all losses and the parameters are.
    """
    looped = most_steps(config, mesh) > 1

    def train_steps(state: TrainState, data: Split | Chunk, count: jax.Array):
        is_chunk = isinstance(data, Chunk)
        batch = streamed(data, state.step) if is_chunk else gathered(config, mesh, data, state.step)

        def step(n, carry):
            state, all_losses, all_accuracies = carry
            augment_key, dropout_key = step_keys(config.seed, state.step)
            raw, labels = batch(n)
            chosen = {key: config.augment[key] for key in ("crop_padding", "border", "flip")}
            images = augment(augment_key, raw, crop_size=crop, **chosen)
            if operations := config.augment.operations:
                images = operate(jax.random.fold_in(augment_key, 3), images, count=operations, magnitude=MAGNITUDE)
            images = normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype))

            gradient = jax.value_and_grad(loss_of(config, mesh, skeleton), has_aux=True)
            (_, (loss, accuracy, statistics)), gradients = gradient(
                state.parameters, state.statistics, images, labels, dropout_key
            )
            updates, moments = optimizer.update(gradients, state.optimizer, state.parameters)
            parameters: Any = optax.apply_updates(state.parameters, updates)
            state = TrainState(state.step + 1, parameters, statistics, moments)
            return state, all_losses.at[n].set(loss.astype(all_losses.dtype)), all_accuracies.at[n].set(accuracy)

        zeros = jnp.zeros(MAX_STEPS_PER_DISPATCH, jnp.float32)
        start = (state, zeros, zeros)
        state, loss, accuracy = jax.lax.fori_loop(0, count, step, start) if looped else step(0, start)
        finite = jnp.all(jnp.stack([jnp.isfinite(each).all() for each in (loss, *state.parameters.values())]))
        return state, {"loss": loss, "accuracy": accuracy, "finite": finite}

    train_steps = in_precision(config.train.matmul_precision, train_steps)
    return compiling.jit(train_steps, platform=platform_of(mesh), donate_argnums=0, out_shardings=replicated(mesh))
