"""Devices that programs are compiled for without having them: `h100`, `h100x8`, `v5e:4x4` and the like."""

import os
import re
from typing import Any, NamedTuple

from jax.experimental import topologies
from jax.sharding import Mesh

from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.training.mesh import data_mesh

MOST_GPUS = 8  # of one machine


class Chip(NamedTuple):
    """One device, and what programs reach on it: about nine tenths of its memory's rate, eight of its arithmetic's.

    Attributes:
      memory: bytes.
      bandwidth: bytes per second between the device and its memory.
      rates: multiplications and additions per second in matrix products, by the type of what is multiplied.
      link: bytes per second that a device sends to others in a collective.
      clock: cycles per second, in which compilers for TPUs note what they expect of an operation; 0 where not known.
    """

    memory: int
    bandwidth: float
    rates: dict[str, float]
    link: float
    clock: float = 0.0

    def rate(self, dtype: str) -> float:
        """Operations per second in matrix products of a type; an unknown one counts as float32."""
        return self.rates.get(dtype, self.rates["f32"])


class Target(NamedTuple):
    """What a program is compiled for: so many chips, and how they are described to XLA."""

    name: str
    platform: str  # "gpu" or "tpu"
    chip: Chip
    topology: str


# XLA's GpuTargetConfigProto: what its compiler would ask of the device.
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84978434048
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
GPUS = {
    # float32 is multiplied as TF32, unless the highest precision is asked for
    "h100": (Chip(84_978_434_048, 3.0e12, {"f32": 400e12, "f32 highest": 54e12, "bf16": 800e12}, 370e9), H100),
}
# float32 is multiplied in one pass of bfloat16, at the highest precision in six. The clock of v5e follows from its 197
# TFLOP/s: four units of 128 x 128 multiply-adds per cycle.
TPUS = {
    "v5e": Chip(16 * 2**30, 0.73e12, {"f32": 160e12, "f32 highest": 27e12, "bf16": 160e12}, 80e9, 1.5e9),
    "v6e": Chip(32 * 2**30, 1.47e12, {"f32": 740e12, "f32 highest": 123e12, "bf16": 740e12}, 160e9),
}
# Else libtpu looks for the machine it runs on, and refuses to be loaded by two processes, which could share a TPU.
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
ALLOWED = "h100, h100x2 to h100x8, v5e:2x2, v5e:4x4 and other slices of v5e and v6e, as ROWSxCOLUMNS"


def parse(name: str) -> Target:
    """Returns the target that a name stands for; UserError for a name that stands for none."""
    if found := re.fullmatch(r"(\w+?)(?:x(\d+))?", name):
        count = int(found[2] or 1)
        if found[1] in GPUS and 1 <= count <= MOST_GPUS:
            return Target(name, "gpu", GPUS[found[1]][0], f"1x1x{count}")
    elif (found := re.fullmatch(r"(\w+):(\d+)x(\d+)", name)) and found[1] in TPUS and int(found[2]) * int(found[3]) > 0:
        return Target(name, "tpu", TPUS[found[1]], name)
    raise UserError(f"--for={name}: allowed are {ALLOWED}")


def mesh_of(target: Target) -> Mesh:
    """Returns a mesh of a target's devices, which compile and do not compute.

    Raises:
      UserError: without the packages of the extras `compile-gpu` and `compile-tpu`, or for a slice that no TPU has.
    """
    arguments: dict[str, Any] = {"platform": "tpu", "topology_name": target.topology}
    if target.platform == "gpu":
        config = GPUS[target.name.split("x")[0]][1]
        arguments = {"platform": "cuda", "topology": target.topology, "target_config": config}
    else:
        for key, value in WITHOUT_TPU.items():
            os.environ.setdefault(key, value)
    try:
        devices = topologies.get_topology_desc(**arguments).devices
    except Exception as error:
        if is_missing(error):
            extra = f"attn-cnn-jax[compile-{target.platform}]"
            raise UserError(f"--for={target.name} needs a compiler that is not here: pip install '{extra}'") from error
        message = f"--for={target.name}: XLA knows no such devices: {shortened(error)}\nallowed are {ALLOWED}"
        raise UserError(message) from error
    return data_mesh(devices)


def is_missing(error: Exception) -> bool:
    """Whether an error of `get_topology_desc` says that the platform's compiler is not installed."""
    return isinstance(error, NotImplementedError | ImportError) or "not installed" in str(error)
