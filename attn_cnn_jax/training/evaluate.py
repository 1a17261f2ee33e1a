"""One evaluation of a network on a data set, chunk by chunk over a mesh of all devices."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sets import Spec
from attn_cnn_jax.models.attention.layer import for_platform
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import Skeleton, join
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.feed import NONE, Chunk
from attn_cnn_jax.training.mesh import place, platform_of, replicated
from attn_cnn_jax.training.step import losses

NOTHING = np.float32(0), np.int32(0), np.int32(0)  # sums to begin with: of losses, right predictions and images


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
