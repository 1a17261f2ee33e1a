"""The rate of matrix products of the machine, and the operations per picture: what times are compared with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attn_cnn_jax.analysis.flops import count_flops
from benchmarks.measure import seconds

REPEATS = 5
SIDES = {"cpu": (1024, 2048), "gpu": (4096, 8192)}  # of square matrices


def flops_a_picture(model: ConfigDict, *, training: bool) -> int:
    """FLOPs of one picture with the dense implementation, elementwise work left out; two a multiply-add.

    A training step takes three times the forward pass: every product has two in its backward pass, by either factor.
    That counts one too many, the gradient by the picture itself, less than a thousandth in the paper's networks.
    """
    return (3 if training else 1) * count_flops(model).full


def matrix_product_rates(dtype: str, *, with_torch: bool) -> dict[str, float]:
    """FLOPs a second of large square matrix products by library and side: the best of some."""
    sides = SIDES.get(jax.default_backend(), SIDES["cpu"])
    rates = {}
    for side in sides:
        rates[f"jax {side}"] = rate(jax_product(side, dtype), side)
        if with_torch:
            rates[f"torch {side}"] = rate(torch_product(side, dtype), side)
    return rates


def rate(product: Callable, side: int) -> float:
    product()
    return 2 * side**3 / min(seconds(product) for _ in range(REPEATS))


def jax_product(side: int, dtype: str) -> Callable:
    a = jax.random.normal(jax.random.key(0), (side, side), dtype)
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(a, a).block_until_ready()


def torch_product(side: int, dtype: str) -> Callable:
    import torch

    from benchmarks import pytorch

    a = torch.randn(side, side, dtype=getattr(torch, dtype), device=pytorch.device())

    def product():
        a @ a
        pytorch.wait()

    return product
