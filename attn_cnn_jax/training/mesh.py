"""All devices of a run as one mesh: batches are split over it, everything else is on every device."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, UInt8

from attn_cnn_jax.arrays import AnyArray


class Pictures(NamedTuple):
    """A data set as training reads it: copied to every device once, by `place`."""

    images: UInt8[AnyArray, "n H W C"]
    labels: Int[AnyArray, " n"]


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh of all JAX devices of all processes, or of those given, along one axis, `data`."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def platform_of(mesh: Mesh) -> str:
    """Returns what kind of devices a mesh has: "cpu", "gpu" or "tpu"; they need not be those of this machine."""
    return mesh.devices.flat[0].platform


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def place(tree: Any, mesh: Mesh) -> Any:
    """Puts the same host values on every device of every process; explicitly, as `jax.transfer_guard` demands."""

    def put(x):
        copies = [jax.device_put(np.asarray(x), device) for device in mesh.local_devices]
        return jax.make_array_from_single_device_arrays(np.shape(x), replicated(mesh), copies)

    return jax.tree.map(put, tree)


def split_over_devices(mesh: Mesh, x: jax.Array) -> jax.Array:
    """Splits the first axis of an array over the mesh, inside a jitted function."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("data")))
