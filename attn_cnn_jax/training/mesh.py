"""The devices of a run as one mesh: batches are split over it, everything else is on every device."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int
from ml_collections import ConfigDict

from attn_cnn_jax import output
from attn_cnn_jax.config.network import parameter_size
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.evaluate import Placement

COPIES = 3  # of the parameters in training: themselves, their gradient, the optimizer's momentum


def data_mesh(devices: Sequence[Any]) -> Mesh:
    """Returns a mesh of devices along one axis, `data`."""
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def mesh_for(batch_size: int) -> Mesh:
    """Returns a mesh of as many devices as share a training batch evenly; says if some are not used.

    UserError if several processes cannot share the batch evenly: all of them have to take part.
    """
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)
    if count < len(devices) and jax.process_count() > 1:
        smaller = batch_size // len(devices) * len(devices)
        sizes = " or ".join(map(str, filter(None, (smaller, smaller + len(devices)))))
        raise UserError(
            f"config.train.batch_size={batch_size}: allowed is a multiple of {len(devices)}, the devices of all "
            f"processes, such as {sizes}"
        )
    if count < len(devices):
        output.say(
            f"config.train.batch_size={batch_size}: runs on {count} of {len(devices)} devices, which share it evenly"
        )
    return data_mesh(devices[:count])


def platform_of(mesh: Mesh) -> str:
    """Returns what kind of devices a mesh has: "cpu", "gpu" or "tpu"; they need not be those of this machine."""
    return mesh.devices.flat[0].platform


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def split_along(mesh: Mesh, axis: int) -> NamedSharding:
    """Returns the sharding of an array, such as a batch, of which each device holds its part along an axis."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, "data"))


def place(tree: Any, mesh: Mesh) -> Any:
    """Puts the same host values on every device of every process."""
    return _explicitly(replicated(mesh), jax.tree.map(np.asarray, tree))


def rows_of_process(batch_size: int, mesh: Mesh) -> Int[np.ndarray, " r"]:
    """Returns which images of a batch the devices of this process hold, in their order."""
    places = split_along(mesh, 0).addressable_devices_indices_map((batch_size,))
    rows = np.arange(batch_size)
    return np.sort(np.concatenate([rows[place] for place in places.values()]))


def share(rows: np.ndarray, mesh: Mesh, axis: int = 0) -> jax.Array:
    """Splits an array over the devices along an axis, given the rows of this process."""
    return _explicitly(split_along(mesh, axis), rows)


@jax.transfer_guard("allow")  # which takes what follows for a stray copy where there are several processes
def _explicitly(sharding: NamedSharding, tree: Any) -> Any:
    return jax.make_array_from_process_local_data(sharding, tree)


def placement(mesh: Mesh) -> Placement:
    """Returns where an evaluation puts its arrays and images: as training does, the logits on every device."""
    return Placement(
        platform_of(mesh),
        whole=lambda tree: place(tree, mesh),
        batch=lambda images: share(images[rows_of_process(len(images), mesh)], mesh),
        result=replicated(mesh),
        devices=mesh.size,
    )


def check_memory(model: ConfigDict) -> None:
    """Raises UserError if not even the parameters, with gradient and momentum, fit into the memory of a device."""
    values, in_bytes = parameter_size(model)
    if COPIES * in_bytes > (there := device_memory()):
        raise UserError(
            f"the network of config.model has {values:,} parameters: training needs {COPIES * in_bytes / 1e9:,.0f} GB "
            f"with gradient and momentum; the device has {there / 1e9:,.0f} GB\n"
            "lower num_layers, num_heads, hidden_size or intermediate_size"
        )


def device_memory() -> int:
    """Returns the bytes of memory of a device, or of the machine where the device is its CPU."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit") or sources.machine_memory()
