"""Checks, before any work, that data, devices and memory allow a run."""

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import parameter_size
from attn_cnn_jax.data import stored
from attn_cnn_jax.errors import UserError

COPIES = 3  # of the parameters in training: themselves, their gradient, the optimizer's momentum


def unused_devices(batch_size: int, mesh: Mesh) -> str:
    """Returns which devices are left out, as they cannot share a batch evenly; "" for none."""
    count = jax.device_count()
    if mesh.size == count:
        return ""
    return f"config.train.batch_size={batch_size}: runs on {mesh.size} of {count} devices, which share it evenly"


def choose_feed(feed: str, pictures: int, memory: int) -> tuple[str, str]:
    """Returns "device" or "stream", and why, for the log; "" for what the user chose or what is usual.

    Args:
      feed: `config.dataset.feed`.
      pictures: bytes of the decoded data set.
      memory: bytes of the device, or of the machine where that has less: pictures pass through there.
    """
    if feed != "auto":
        return feed, ""
    if pictures <= stored.MEMORY_SHARE * memory:
        return "device", ""
    return "stream", (
        f"config.dataset.feed=auto: the pictures take {pictures / 1e9:,.1f} GB, more than a quarter of the "
        f"{memory / 1e9:,.1f} GB of memory: streamed from the disk"
    )


def check_counts(config: ConfigDict, num_pictures: int) -> None:
    """Raises UserError unless the training set fills a batch beside the validation split."""
    batch_size, num_validation = config.train.batch_size, config.dataset.num_validation
    if num_validation + batch_size > num_pictures:
        raise UserError(
            f"config.train.batch_size={batch_size} and config.dataset.num_validation={num_validation}: together they "
            f"must not exceed {num_pictures:,}, the training pictures of {config.dataset.name}"
        )


def check_memory(config: ConfigDict) -> None:
    """Raises UserError if not even the parameters, with gradient and momentum, fit into the memory of a device."""
    values, in_bytes = parameter_size(config.model)
    needed = COPIES * in_bytes
    if needed > (there := device_memory()):
        raise UserError(
            f"the network of config.model has {values:,} parameters: training needs "
            f"{needed / 1e9:,.0f} GB with gradient and momentum; the device has {there / 1e9:,.0f} GB\n"
            "lower num_layers, num_heads, hidden_size or intermediate_size"
        )


def device_memory() -> int:
    """Returns the bytes of memory of a device, or of the machine where the device is its processor."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit") or stored.machine_memory()
