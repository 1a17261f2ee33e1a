"""What data, devices and memory do not allow, said before any work."""

import os

import jax
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.config import create_model
from attn_cnn_jax.errors import UserError

COPIES = 3  # of the parameters in training: themselves, their gradient, the optimizer's momentum


def check_devices(config: ConfigDict, num_devices: int) -> None:
    """UserError unless a batch splits evenly over the devices."""
    if config.train.batch_size % num_devices:
        raise UserError(
            f"config.train.batch_size={config.train.batch_size}: "
            f"allowed is a multiple of {num_devices}, the number of devices that a batch is split over"
        )


def check_counts(config: ConfigDict, num_pictures: int) -> None:
    """UserError unless the training set fills a batch beside the validation split."""
    batch_size, num_validation = config.train.batch_size, config.dataset.num_validation
    if num_validation + batch_size > num_pictures:
        raise UserError(
            f"config.train.batch_size={batch_size} and config.dataset.num_validation={num_validation}: "
            f"allowed is together at most {num_pictures}, the training pictures of {config.dataset.name}"
        )


def check_memory(config: ConfigDict) -> None:
    """UserError if not even the parameters of all seeds, with gradient and momentum, fit into a device's memory."""
    network = nnx.eval_shape(lambda: create_model(config.model, rngs=nnx.Rngs(0)))
    parameters = jax.tree.leaves(nnx.state(network, nnx.Param))
    num_seeds = config.train.num_seeds
    needed = COPIES * num_seeds * sum(array.size * array.dtype.itemsize for array in parameters)
    if needed > (there := device_memory()):
        several = f" in each of {num_seeds} networks" if num_seeds > 1 else ""
        raise UserError(
            f"the network of config.model has {sum(array.size for array in parameters):,} parameters{several}, "
            f"{needed / 1e9:,.0f} GB with gradient and momentum: there are {there / 1e9:,.0f} GB\n"
            f"lower {'config.train.num_seeds, ' if several else ''}"
            "num_layers, num_heads, hidden_size or intermediate_size"
        )


def device_memory() -> int:
    """Bytes of a device, or of the machine where the device is its processor."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
