"""One training step as a pure function, and many of them in one dispatch over a mesh of all devices.

Everything random is a function of `(seed, step)`: the order of the pictures in an epoch, augmentation, dropout. The
arrays are global, so that the numbers are the same for any number of devices.
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

from attn_cnn_jax.arrays import Images, Key, Labels
from attn_cnn_jax.data.augment import alternating, augment, halved, normalise
from attn_cnn_jax.data.mixing import Mixed, mix
from attn_cnn_jax.data.operations import operate
from attn_cnn_jax.data.order import epoch_order
from attn_cnn_jax.data.sources import Spec
from attn_cnn_jax.models.encodings.quadratic_generalized import covariance_penalty
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.averaging import iterate
from attn_cnn_jax.training.feed import MAX_STEPS_PER_DISPATCH, Chunk, padded
from attn_cnn_jax.training.mesh import Pictures, platform_of, replicated, split_over_devices
from attn_cnn_jax.training.optimizer import all_finite

TrainStep = Callable[[TrainState, Pictures], tuple[TrainState, jax.Array, jax.Array]]


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
    """Returns the cross-entropy (nats) and whether the first choice is right, per picture."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return loss, logits.argmax(axis=-1) == labels


def smoothed(loss: Float[Array, " b"], logits: Float[Array, "b classes"], smoothing: float) -> Float[Array, " b"]:
    """Returns the cross-entropy with labels of which a share is spread over all classes evenly, given that without."""
    return (1 - smoothing) * loss - smoothing * jax.nn.log_softmax(logits).mean(axis=-1)


def of_both_labels(loss: Float[Array, " b"], logits: Float[Array, "b classes"], mixed: Mixed) -> Float[Array, " b"]:
    """Returns the cross-entropy of both labels of mixed pictures by their shares, given that of the first."""
    return mixed.share * loss + (1 - mixed.share) * losses(logits, mixed.others)[0]


def augmented(config: ConfigDict, key: Key, images: Images, epoch: Int[Array, ""]) -> Images:
    """Returns pictures of an epoch, cropped, mirrored and operated on as `config.augment` says."""
    crop_padding, flip, flips = config.augment.crop_padding, config.augment.flip, None
    if config.augment.alternate:
        flips = alternating(jax.random.fold_in(jax.random.key(config.seed), 3), images, epoch)
    images = augment(key, images, crop_padding=crop_padding, flip=flip, flips=flips)
    count, magnitude = config.augment.operations, config.augment.magnitude
    return operate(jax.random.fold_in(key, 3), images, count=count, magnitude=magnitude) if count else images


def mixed_batch(config: ConfigDict, key: Key, images: Float[Array, "b H W C"], labels: Labels) -> Mixed | None:
    """Returns normalised pictures mixed as `config.augment` says, None for not at all; `key` is that of `augmented`."""
    kind, alpha = config.augment.mix, config.augment.mix_alpha
    if kind == "none":
        return None
    return mix(jax.random.fold_in(key, 2), images, labels, kind=kind, alpha=alpha, count=config.train.batch_size)


def mean_of_batch(batch_size: int, mesh: Mesh) -> tuple[Callable[..., jax.Array], Bool[np.ndarray, " b"] | None]:
    """Returns how to take a mean over a batch, `mean(values, dtype=None)`, and which of its pictures count.

    A batch that devices cannot share evenly is filled up with pictures that do not count; None where all count.
    """
    size = padded(batch_size, mesh)
    if size == batch_size:
        return (lambda values, dtype=None: values.mean(dtype=dtype)), None
    counts = np.arange(size) < batch_size

    def mean(values, dtype=None):
        return jnp.where(counts, values, jnp.zeros_like(values)).sum(dtype=dtype) / batch_size

    return mean, counts


def most_steps(config: ConfigDict, mesh: Mesh) -> int:
    """Returns how many steps one dispatch may do.

    One for convolutions on CPUs: there XLA computes their weight gradient twenty times slower inside a loop.
    """
    model = config.model
    convolutions = model.layers == "convolution" if model.name == "resnet" else model.stem != "none"
    return 1 if convolutions and platform_of(mesh) == "cpu" else MAX_STEPS_PER_DISPATCH


def create_train_step(
    config: ConfigDict,
    mesh: Mesh,
    skeleton: Skeleton,
    optimizer: optax.GradientTransformation,
    spec: Spec,
    steps_per_epoch: int = 1,
) -> TrainStep:
    """Returns `train_step(state, batch) -> (state, loss, accuracy)`, to be jitted.

    It augments the batch, which is split over the devices, and updates the parameters by the gradient of the mean loss,
    of smoothed labels where `config.train` says so, plus the covariance penalty where `config.optimizer` has one.
    `loss` and `accuracy` are means over the batch, of the labels as they are, of mixed pictures of that with the larger
    share, and without the penalty. See `create_train_steps` for the arguments.
    """
    weight, smoothing = config.optimizer.covariance_penalty, config.train.label_smoothing
    steps_at_half_size = round(config.augment.half_size_until * config.train.num_epochs) * steps_per_epoch
    mean, counts = mean_of_batch(config.train.batch_size, mesh)

    def train_step(state: TrainState, batch: Pictures):
        augment_key, dropout_key = step_keys(config.seed, state.step)
        images = augmented(config, augment_key, batch.images, state.step // steps_per_epoch)
        images = normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype))
        mixed = mixed_batch(config, augment_key, images, batch.labels)
        images, labels = (mixed.images, mixed.labels) if mixed else (images, batch.labels)

        def mean_loss(parameters, images):
            model = for_platform(join(skeleton, parameters, state.statistics), platform_of(mesh))
            logits = model(images, key=dropout_key, counts=counts)[0]
            loss, right = losses(logits, labels)
            learned = of_both_labels(loss, logits, mixed) if mixed else loss
            learned = smoothed(learned, logits, smoothing) if smoothing else learned
            penalty = weight * covariance_penalty(parameters) if weight else 0.0
            return mean(learned) + penalty, (mean(loss), mean(right, jnp.float32), split(model)[2])

        grad = jax.value_and_grad(mean_loss, has_aux=True)
        at = iterate(state.optimizer, state.parameters)
        if steps_at_half_size:
            of_half = lambda at, images: grad(at, halved(images))  # noqa: E731
            found = jax.lax.cond(state.step < steps_at_half_size, of_half, grad, at, images)
        else:
            found = grad(at, images)
        (_, (loss, accuracy, statistics)), gradients = found
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.parameters)
        parameters: Any = optax.apply_updates(state.parameters, updates)
        return TrainState(state.step + 1, parameters, statistics, optimizer_state), loss, accuracy

    return train_step


def gathered(config: ConfigDict, mesh: Mesh, pictures: Pictures, step: jax.Array) -> Callable[[Any], Pictures]:
    """Returns `batch(n)`: the batch of n steps after `step`, in the same epoch, out of the whole training set.

    A batch that devices cannot share evenly is filled up with its last picture.
    """
    batch_size, num_pictures = config.train.batch_size, pictures.labels.shape[0]
    steps_per_epoch = num_pictures // batch_size
    order = epoch_order(config.seed, step // steps_per_epoch, num_pictures)
    first = step % steps_per_epoch
    padding = padded(batch_size, mesh) - batch_size

    def batch(n):
        indices = jax.lax.dynamic_slice_in_dim(order, (first + n) * batch_size, batch_size)
        # Random draws are those without padding: JAX makes each number from the key and its place in the array alone,
        # and where pictures are not the first axis, dropout is told how many count.
        indices = split_over_devices(mesh, jnp.pad(indices, (0, padding), mode="edge") if padding else indices)
        return Pictures(pictures.images[indices], pictures.labels[indices])

    return batch


def streamed(chunk: Chunk, step: jax.Array) -> Callable[[Any], Pictures]:
    """Returns `batch(n)`: the batch of n steps after `step`, out of the chunk that holds it; filled up likewise."""
    first = step - chunk.first
    return lambda n: Pictures(*(jax.lax.dynamic_index_in_dim(a, first + n, keepdims=False) for a in chunk[:2]))


def create_train_steps(
    config: ConfigDict,
    mesh: Mesh,
    skeleton: Skeleton,
    optimizer: optax.GradientTransformation,
    spec: Spec,
    steps_per_epoch: int = 1,
) -> jax.stages.Wrapped:
    """Returns the jitted `train_steps(state, data, count)`: many steps in one dispatch, `state` donated.

    The steps must lie in one epoch, at most `most_steps(config, mesh)`. `data` is the whole training set, `Pictures`,
    or the `Chunk` that has the batches of these steps: the numbers are the same. Incomplete batches at the end of an
    epoch are left out; the next epoch has another order.

    Args:
      config: of the run; read are `seed`, `model.dtype`, `augment`, `optimizer.covariance_penalty`, and of `train`
        `batch_size`, `label_smoothing`, `matmul_precision` and, with `augment.half_size_until`, `num_epochs`.
      mesh: the devices that a batch is split over.
      skeleton: of the network, from `initial_state`.
      optimizer: from `create_optimizer`.
      spec: of the data set; its mean and standard deviation normalise the pictures.
      steps_per_epoch: read where `augment.alternate` or `augment.half_size_until` is on.

    Returns:
      The function. Its second result has, for the steps done, `loss` and `accuracy` (`(256,)`, mean over the batch
      without penalty, zero-padded) and `finite`, whether all losses and the parameters are.
    """
    looped = most_steps(config, mesh) > 1
    train_step = create_train_step(config, mesh, skeleton, optimizer, spec, steps_per_epoch)

    def train_steps(state: TrainState, data: Pictures | Chunk, count: jax.Array):
        is_chunk = isinstance(data, Chunk)
        batch = streamed(data, state.step) if is_chunk else gathered(config, mesh, data, state.step)

        def body(n, carry):
            state, loss, accuracy = carry
            state, step_loss, step_accuracy = train_step(state, batch(n))
            return state, loss.at[n].set(step_loss.astype(loss.dtype)), accuracy.at[n].set(step_accuracy)

        zeros = jnp.zeros(MAX_STEPS_PER_DISPATCH, jnp.float32)
        start = (state, zeros, zeros)
        state, loss, accuracy = jax.lax.fori_loop(0, count, body, start) if looped else body(0, start)
        finite = jnp.isfinite(loss).all() & all_finite(state.parameters)
        return state, {"loss": loss, "accuracy": accuracy, "finite": finite}

    train_steps = in_precision(config.train.matmul_precision, train_steps)
    return jax.jit(train_steps, donate_argnums=0, out_shardings=replicated(mesh))
