"""One evaluation of a network on a data set: in one dispatch over a mesh of all devices, or chunk by chunk."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sources import Spec
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.models.variables import Skeleton, join
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.feed import Chunk, StreamedEvaluation, padded
from attn_cnn_jax.training.mesh import Pictures, place, platform_of, replicated, split_over_devices
from attn_cnn_jax.training.step import losses

Evaluate = Callable[[TrainState, Pictures], dict[str, jax.Array]]
Sums = tuple[jax.Array, jax.Array]  # of the losses, and how many predictions are right


def create_evaluate(config: ConfigDict, mesh: Mesh, skeleton: Skeleton, spec: Spec) -> Evaluate:
    """Returns the jitted `evaluate(state, pictures)`: mean `loss` (nats) and `accuracy`, every picture counted once.

    The last batch is filled up with pictures that do not count.

    Args:
      config: of the run; read are `model.dtype`, `train.matmul_precision` and `train.eval_batch_size`, rounded up
        to the number of devices.
      mesh: the devices that a batch is split over.
      skeleton: of the network, from `initial_state`.
      spec: of the data set; its mean and standard deviation normalise the pictures.
    """
    batch_size, add = padded(config.train.eval_batch_size, mesh), create_add(config, spec)

    def evaluate(state: TrainState, pictures: Pictures):
        model = for_evaluation(config, skeleton, state, mesh)
        count = pictures.labels.shape[0]

        def body(sums, start):
            positions = split_over_devices(mesh, start + jnp.arange(batch_size))
            indices = jnp.minimum(positions, count - 1)
            return add(model, sums, pictures.images[indices], pictures.labels[indices], positions < count), None

        starts = jnp.arange(0, count, batch_size)
        return means(jax.lax.scan(body, (jnp.float32(0), jnp.int32(0)), starts)[0], count)

    evaluate = in_precision(config.train.matmul_precision, evaluate)
    return jax.jit(evaluate, out_shardings=replicated(mesh))


def create_evaluate_streamed(config: ConfigDict, mesh: Mesh, skeleton: Skeleton, spec: Spec) -> Callable[..., dict]:
    """Returns `evaluate(state, pictures)` of a `StreamedEvaluation`: the sums of `create_evaluate` in the same order.

    See there for the arguments.
    """
    batch_size, add = padded(config.train.eval_batch_size, mesh), create_add(config, spec)

    @functools.partial(jax.jit, static_argnames="count", out_shardings=replicated(mesh))
    def add_chunk(state: TrainState, sums: Sums, chunk: Chunk, count: int):
        model = for_evaluation(config, skeleton, state, mesh)
        num_batches = jnp.minimum(chunk.labels.shape[0], -(-count // batch_size) - chunk.first)

        def body(n, sums):
            positions = split_over_devices(mesh, (chunk.first + n) * batch_size + jnp.arange(batch_size))
            images, labels = (jax.lax.dynamic_index_in_dim(each, n, keepdims=False) for each in chunk[:2])
            return add(model, sums, images, labels, positions < count)

        return in_precision(config.train.matmul_precision, jax.lax.fori_loop)(0, num_batches, body, sums)

    @functools.partial(jax.jit, static_argnames="count", out_shardings=replicated(mesh))
    def finish(sums: Sums, count: int):
        return means(sums, count)

    def evaluate(state: TrainState, pictures: StreamedEvaluation) -> dict[str, jax.Array]:
        count, sums = len(pictures.pictures.labels), place(NOTHING, mesh)
        for chunk in pictures.chunks(batch_size, mesh):
            sums = add_chunk(state, sums, chunk, count)
        return finish(sums, count)

    return evaluate


NOTHING = np.float32(0), np.int32(0)  # `Sums` to begin with


def for_evaluation(config: ConfigDict, skeleton: Skeleton, state: TrainState, mesh: Mesh) -> Any:
    """Returns the network of a state, prepared for many batches."""
    network = for_platform(join(skeleton, state.parameters, state.statistics), platform_of(mesh))
    return merged(network, config.model.image_shape)


def create_add(config: ConfigDict, spec: Spec) -> Callable[..., Sums]:
    """Returns `add(model, sums, images, labels, counts)`: the sums with those pictures of a batch that count."""

    def add(model, sums, images, labels, counts):
        images = normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype))
        loss, right = losses(model(images)[0], labels)
        loss_sum, right_sum = sums
        loss_sum += jnp.where(counts, loss, 0).sum().astype(loss_sum.dtype)
        return loss_sum, right_sum + (counts & right).sum(dtype=jnp.int32)

    return add


def means(sums: Sums, count: int) -> dict[str, jax.Array]:
    """Returns mean loss and accuracy of `count` pictures."""
    loss, right = sums
    return {"loss": loss / count, "accuracy": right.astype(jnp.float32) / count}
