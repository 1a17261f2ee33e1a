"""What can be said before the first step: whether data and memory suffice, and about how long it takes."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import parameter_size
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.mesh import platform_of
from attn_cnn_jax.training.reporter import clock

DAY = 24 * 3600
COPIES = 3  # of the parameters in training: themselves, their gradient, the optimizer's momentum
SLOWER = 2.0  # than that product a step is, per FLOP: 1.3 to 6.7 times for the networks of configs/ on two CPU cores


def expected_time(program: jax.stages.Compiled, mesh: Mesh, steps: float) -> str:
    """Returns how long so many steps will take, in words, by the FLOPs of a step and the time of a matrix product."""
    flops = (program.cost_analysis() or {}).get("flops", 0.0)
    size, times = 1024 if platform_of(mesh) == "cpu" else 4096, []
    x, product = jax.device_put(np.ones((size, size), np.float32), mesh.local_devices[0]), jax.jit(jnp.matmul)
    for _ in range(4):  # the first one is compiled
        started = time.monotonic()
        product(x, x).block_until_ready()
        times.append(time.monotonic() - started)
    seconds = SLOWER * steps * flops * min(times) / (2 * size**3)
    smaller = "a GPU, or a smaller network such as --config=cifar10_cpu" if size == 1024 else "more devices"
    advice = f" (use {smaller})" if seconds >= DAY else ""
    return f"; very roughly {clock(seconds)}{advice}, by FLOPs and the speed of a matrix product" if seconds else ""


def check_counts(batch_size: int, dataset: ConfigDict, num_images: int) -> None:
    """Raises UserError unless the training set of `config.dataset` fills a batch beside the validation split."""
    if dataset.num_validation + batch_size > num_images:
        raise UserError(
            f"config.train.batch_size={batch_size} and config.dataset.num_validation={dataset.num_validation}: "
            f"together they must not exceed {num_images:,}, the training images of {dataset.name}"
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
