"""Training steps, many of them in one dispatch over a mesh of devices, and the evaluation of a data set.

Everything random is a function of `(seed, step)`: the order of the images in an epoch, augmentation, dropout. The
arrays are global, so that the numbers are the same for any number of devices.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt8
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import AnyArray, Grid, Images, Key, Labels
from attn_cnn_jax.data.augment import augment, epoch_order, normalise, operate
from attn_cnn_jax.data.sets import Spec, Split
from attn_cnn_jax.models.attention.layer import for_platform
from attn_cnn_jax.models.encodings.quadratic import covariance_penalty
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.feed import MAX_STEPS_PER_DISPATCH, NONE, Chunk
from attn_cnn_jax.training.mesh import place, platform_of, replicated, split_along

MAGNITUDE = 0.5  # of the strongest augmentation
NOTHING = np.float32(0), np.int32(0), np.int32(0)  # sums to begin with: of losses, right predictions and images


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


def augmented(config: ConfigDict, key: Key, images: Images, crop: Grid | None) -> UInt8[AnyArray, "b h w C"]:
    """Returns images cropped, mirrored and operated on as `config.augment` says."""
    padding, count = config.augment.crop_padding, config.augment.operations
    images = augment(key, images, crop_padding=padding, crop_size=crop, flip=config.augment.flip)
    return operate(jax.random.fold_in(key, 3), images, count=count, magnitude=MAGNITUDE) if count else images


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


def create_train_steps(
    config: ConfigDict,
    mesh: Mesh,
    skeleton: Skeleton,
    optimizer: optax.GradientTransformation,
    spec: Spec,
    crop: Grid | None = None,
) -> jax.stages.Wrapped:
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
    weight, smoothing = config.optimizer.covariance_penalty, config.train.label_smoothing
    looped = most_steps(config, mesh) > 1

    def train_steps(state: TrainState, data: Split | Chunk, count: jax.Array):
        is_chunk = isinstance(data, Chunk)
        batch = streamed(data, state.step) if is_chunk else gathered(config, mesh, data, state.step)

        def step(n, carry):
            state, all_losses, all_accuracies = carry
            augment_key, dropout_key = step_keys(config.seed, state.step)
            raw, labels = batch(n)
            images = augmented(config, augment_key, raw, crop)
            images = normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype))

            def mean_loss(parameters):
                model = for_platform(join(skeleton, parameters, state.statistics), platform_of(mesh))
                logits = model(images, key=dropout_key)[0]
                loss, right = losses(logits, labels)
                learned = smoothed(loss, logits, smoothing) if smoothing else loss
                penalty = weight * covariance_penalty(parameters) if weight else 0.0
                return learned.mean() + penalty, (loss.mean(), right.mean(dtype=jnp.float32), split(model)[2])

            (_, (loss, accuracy, statistics)), gradients = jax.value_and_grad(mean_loss, has_aux=True)(state.parameters)
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
    return jax.jit(train_steps, donate_argnums=0, out_shardings=replicated(mesh))


def create_evaluate(
    config: ConfigDict, mesh: Mesh, skeleton: Skeleton, spec: Spec
) -> Callable[[TrainState, Iterable[Chunk]], dict[str, float]]:
    """Returns `evaluate(state, chunks)`: mean `loss` (nats) and `accuracy`, every image counted once.

    See `create_add` for the arguments, and `feed.evaluation_chunks` for the chunks.
    """
    add = create_add(config, mesh, skeleton, spec)

    def evaluate(state: TrainState, chunks: Iterable[Chunk]) -> dict[str, float]:
        sums = place(NOTHING, mesh)
        for chunk in chunks:
            sums = add(state, sums, chunk)
        loss, right, count = jax.device_get(sums)
        return {"loss": float(loss / np.float32(count)), "accuracy": float(np.float32(right) / np.float32(count))}

    return evaluate


def create_add(config: ConfigDict, mesh: Mesh, skeleton: Skeleton, spec: Spec) -> jax.stages.Wrapped:
    """Returns the jitted `add(state, sums, chunk)`: the sums that `NOTHING` begins, with those of a chunk.

    Mean and standard deviation of `spec` normalise the images, the devices of `mesh` share a batch.
    """

    def add(state: TrainState, sums: Any, chunk: Chunk):
        network = for_platform(join(skeleton, state.parameters, state.statistics), platform_of(mesh))
        model = merged(network, config.model.image_shape)

        def body(n, sums):
            images, labels = (jax.lax.dynamic_index_in_dim(each, n, keepdims=False) for each in chunk[:2])
            images = normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype))
            loss, right = losses(model(images)[0], labels)
            counts = labels != NONE
            losses_sum = jnp.where(counts, loss, 0).sum().astype(jnp.float32)
            found = losses_sum, (counts & right).sum(dtype=jnp.int32), counts.sum(dtype=jnp.int32)
            return jax.tree.map(jnp.add, sums, found)

        num_batches = (chunk.labels != NONE).any(axis=1).sum(dtype=jnp.int32)
        return jax.lax.fori_loop(0, num_batches, body, sums)

    return jax.jit(in_precision(config.train.matmul_precision, add), out_shardings=replicated(mesh))
