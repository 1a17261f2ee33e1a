"""The devices of a run as one mesh: batches are split over it, everything else is on every device."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from attn_cnn_jax import output
from attn_cnn_jax.errors import UserError


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh of all JAX devices of all processes, or of those given, along one axis, `data`."""
    devices = jax.devices() if devices is None else devices
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
    """Puts the same host values on every device of every process; explicitly, as `jax.transfer_guard` demands."""

    def put(x):
        copies = [jax.device_put(np.asarray(x), device) for device in mesh.local_devices]
        return jax.make_array_from_single_device_arrays(np.shape(x), replicated(mesh), copies)

    return jax.tree.map(put, tree)
