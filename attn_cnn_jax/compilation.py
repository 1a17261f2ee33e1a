"""What XLA says of a run compiled for GPUs or TPUs that are not here, and the least time that arithmetic takes.

The training steps and the evaluation are the real ones. Memory, whether they fit, and what devices send each other
follow from the compiled programs. The bound is arithmetic alone: the FLOPs of the network over the chip's peak.
"""

import math
import os
import re
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import topologies
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.analysis.bound import CHIPS, GIB, bound, known_spec
from attn_cnn_jax.config.checks import check_counts
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.data.sets import Split
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.runs.evaluate import numbers_of, program
from attn_cnn_jax.training.mesh import data_mesh, platform_of, replicated, split_along
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate, matrices
from attn_cnn_jax.training.step import create_train_steps


class Target(NamedTuple):
    """So many chips of a kind, and how they are described to XLA."""

    name: str
    platform: str  # "gpu" or "tpu"
    chip: str  # key of CHIPS
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
# Else libtpu looks for the machine it runs on, and refuses to be loaded by two processes, which could share a TPU.
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
ALLOWED = "h100, h100x2 to h100x8, v5e:2x2, v5e:4x4 and other slices of v5e and v6e, as ROWSxCOLUMNS"
COLLECTIVE = re.compile(r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\(")


def parse(name: str) -> Target:
    """Returns the target that a name stands for; UserError for a name that stands for none."""
    if match := re.fullmatch(r"h100(?:x([1-8]))?", name):
        return Target(name, "gpu", "h100", f"1x1x{match[1] or 1}")
    if (match := re.fullmatch(r"(v5e|v6e):(\d+)x(\d+)", name)) and int(match[2]) * int(match[3]) > 0:
        return Target(name, "tpu", match[1], name)
    raise UserError(f"--for={name}: allowed are {ALLOWED}")


def mesh_of(target: Target) -> Mesh:
    """Returns a mesh of a target's devices, which compile and do not compute.

    UserError without the packages of the extras `compile-gpu` and `compile-tpu`, or for a slice that no TPU has.
    """
    arguments: dict[str, Any] = {"platform": "tpu", "topology_name": target.topology}
    if target.platform == "gpu":
        arguments = {"platform": "cuda", "topology": target.topology, "target_config": H100}
    else:
        for key, value in WITHOUT_TPU.items():
            os.environ.setdefault(key, value)
    try:
        return data_mesh(topologies.get_topology_desc(**arguments).devices)
    except Exception as error:
        if isinstance(error, NotImplementedError | ImportError) or "not installed" in str(error):
            extra = f'pip install -e ".[compile-{target.platform}]"'
            raise UserError(f"--for={target.name} needs a compiler that is not here: {extra}") from error
        message = f"--for={target.name}: XLA knows no such devices: {shortened(error)}\nallowed are {ALLOWED}"
        raise UserError(message) from error


def lower(config: ConfigDict, mesh: Mesh) -> tuple[jax.stages.Lowered, jax.stages.Lowered]:
    """Traces the training steps and the evaluation of a complete configuration; nothing is computed, no data is read.

    A network that starts from another run (`config.start`) is taken as `config.model` describes it.
    """
    spec = known_spec(config)
    num_images = spec.train_examples - config.dataset.num_validation
    steps_per_epoch = max(1, num_images // config.train.batch_size)
    network = abstract_model(config.model)
    schedule = learning_rate(config.optimizer, config.train.num_epochs, steps_per_epoch)
    optimizer = create_optimizer(config.optimizer, schedule, shaped=matrices(network))
    skeleton, parameters, statistics = split(network)

    def shape(size, dtype, sharding=None) -> Any:
        return jax.ShapeDtypeStruct(size, np.dtype(dtype), sharding=sharding or replicated(mesh))

    arrays = parameters, statistics, jax.eval_shape(optimizer.init, parameters)
    state = TrainState(shape((), jnp.int32), *jax.tree.map(lambda x: shape(x.shape, x.dtype), arrays))
    train_set = Split(shape((num_images, *spec.image_shape), jnp.uint8), shape((num_images,), jnp.int32))
    batch_size = min(config.train.eval_batch_size, spec.test_examples)
    images = shape((-(-batch_size // mesh.size) * mesh.size, *spec.image_shape), jnp.uint8, split_along(mesh, 0))
    structure, *merged_arrays = split(nnx.eval_shape(lambda network: merged(network, spec.image_shape), network))
    merged_arrays = jax.tree.map(lambda x: shape(x.shape, x.dtype), tuple(merged_arrays))
    numbers = numbers_of(config, spec)
    evaluation = program("logits", structure, numbers, platform_of(mesh), replicated(mesh))
    return (
        create_train_steps(config, mesh, skeleton, optimizer, spec).lower(state, train_set, shape((), jnp.int32)),
        evaluation.lower(merged_arrays, images),
    )


def report(config: ConfigDict, target: Target) -> dict[str, Any]:
    """Compiles a run and returns what is known of it, ready for JSON.

    Keys: `target`, `devices`, `device_kind`, `batch_size`, `dtype`; `memory`, bytes per device in training by what they
    are for; `collectives`, bytes per training step by kind; and `bound`, see `Bound`. UserError if the compiler is
    missing, or the memory is too small for training or for evaluation.
    """
    mesh = mesh_of(target)
    check_counts(config.train.batch_size, config.dataset, known_spec(config).train_examples)
    training, evaluation = lower(config, mesh)
    compiled, memory = fitting(training, "a step", "batch_size", config, target)
    fitting(evaluation, "evaluation", "eval_batch_size", config, target)
    return {
        "target": target.name,
        "devices": mesh.size,
        "device_kind": mesh.devices.flat[0].device_kind,
        "batch_size": config.train.batch_size,
        "dtype": config.model.dtype,
        "memory": memory | {"available": CHIPS[target.chip].memory},
        "collectives": collectives(compiled.as_text() or ""),
        "bound": bound(config, target.chip, mesh.size)._asdict(),
    }


def fitting(
    lowered: jax.stages.Lowered, what: str, key: str, config: ConfigDict, target: Target
) -> tuple[jax.stages.Compiled, dict[str, int]]:
    """Compiles a program, `what` in words, with batches of `config.train[key]`; returns it and the bytes that it needs.

    UserError if the memory of a device is too small.
    """
    try:
        compiled = lowered.compile()
        memory = memory_of(compiled)
        if memory["needed"] <= CHIPS[target.chip].memory:
            return compiled, memory
        needed = f"{memory['needed'] / GIB:,.1f} GiB per device"
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):  # compilers for TPUs refuse, those for GPUs do not
            raise
        needed = "more memory"
    raise UserError(
        f"{what} of config.train.{key}={config.train[key]} needs {needed}: {target.name} has "
        f"{CHIPS[target.chip].memory / GIB:,.1f} GiB\n"
        f"lower config.train.{key}, take more devices, or config.model.dtype=bfloat16"
    )


def memory_of(program: jax.stages.Compiled) -> dict[str, int]:
    """Bytes per device that a compiled program needs: its arguments, temporaries, and all together."""
    sizes: Any = program.memory_analysis()
    outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes  # the state is updated in place
    arguments, temporaries = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    return {"arguments": arguments, "temporaries": temporaries, "needed": arguments + temporaries + outputs}


def collectives(program: str) -> dict[str, int]:
    """Returns the bytes of the results of the collectives in the text of a compiled program, by kind, each once."""
    sizes: Counter[str] = Counter()
    for results, kind, _ in COLLECTIVE.findall(program):
        for dtype, shape in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", results):
            bits = int(re.sub(r"\D", "", dtype) or 8)  # `pred` takes a byte
            sizes[kind] += bits // 8 * math.prod(map(int, filter(None, shape.split(","))))
    return dict(sizes)
