"""One evaluation of a network on a data set, in one dispatch over a mesh of all devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sources import Spec
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.platform import for_platform
from attn_cnn_jax.models.variables import Skeleton, join
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.mesh import Pictures, platform_of, replicated, split_over_devices
from attn_cnn_jax.training.step import losses

Evaluate = Callable[[TrainState, Pictures], dict[str, jax.Array]]


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
    batch_size = -(-config.train.eval_batch_size // mesh.size) * mesh.size

    def evaluate(state: TrainState, pictures: Pictures):
        model = merged(for_platform(join(skeleton, state.parameters, state.statistics), platform_of(mesh)))
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

    evaluate = in_precision(config.train.matmul_precision, evaluate)
    return jax.jit(evaluate, out_shardings=replicated(mesh))
