"""Whether data and memory suffice for a run, and what is said of how long it takes."""

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import parameter_size
from attn_cnn_jax.data import store
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.mesh import platform_of
from attn_cnn_jax.training.reporter import clock

DAY = 24 * 3600
COPIES = 3  # of the parameters in training: themselves, their gradient, the optimizer's momentum


def duration(seconds: float, mesh: Mesh) -> str:
    """Returns a duration as text, from a day on with advice."""
    smaller = "a GPU, or a smaller network such as --config=cifar10_cpu"
    advice = f" (use {smaller if platform_of(mesh) == 'cpu' else 'more devices'})" if seconds >= DAY else ""
    return clock(seconds) + advice


def check_counts(config: ConfigDict, num_images: int) -> None:
    """Raises UserError unless the training set fills a batch beside the validation split."""
    batch_size, num_validation = config.train.batch_size, config.dataset.num_validation
    if num_validation + batch_size > num_images:
        raise UserError(
            f"config.train.batch_size={batch_size} and config.dataset.num_validation={num_validation}: together they "
            f"must not exceed {num_images:,}, the training images of {config.dataset.name}"
        )


def check_memory(config: ConfigDict) -> None:
    """Raises UserError if not even the parameters, with gradient and momentum, fit into the memory of a device."""
    values, in_bytes = parameter_size(config.model)
    if COPIES * in_bytes > (there := device_memory()):
        raise UserError(
            f"the network of config.model has {values:,} parameters: training needs {COPIES * in_bytes / 1e9:,.0f} GB "
            f"with gradient and momentum; the device has {there / 1e9:,.0f} GB\n"
            "lower num_layers, num_heads, hidden_size or intermediate_size"
        )


def device_memory() -> int:
    """Returns the bytes of memory of a device, or of the machine where the device is its CPU."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit") or store.machine_memory()
