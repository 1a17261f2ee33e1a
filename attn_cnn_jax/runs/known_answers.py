"""Programs of public reports on wrong results, each with an answer that NumPy knows; and this package's own shapes.

`measure` computes each as XLA compiles by default and as this package compiles (compiling.py). Reports:

- product of a product: XNNPACK d0aa6a44b9 "Fix required dot tiling", 19 June 2026; jaxlib 0.10.2 on CPUs takes the
  last columns of the result from the first ones of the right factor; with AVX-512 those of 576x64 are right;
- three rows reduced: jax#39103, jaxlib 0.10.2 on CPUs;
- arctangent: jax#39352, jaxlib 0.10.2 on some CPUs, from fifty elements on;
- gradient of a gather: jax#39025, libtpu 0.0.42, not jitted;
- constant cotangent: openxla/xla#13054, oneDNN of 2024, where a product with zeros spoils the gradient beside it;
- product with zeros, reduced: findings/jaxlib_product_with_zeros.sh, jaxlib 0.10.2 to 0.12.0.1 on CPUs;
- sums of a scatter in a loop: openxla/xla#49143, TPUs with JAX 0.11.2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attn_cnn_jax import compiling, reference

TOLERANCE = 1e-3  # relative: above what products in float32 or TF32 lose, far below what was wrong


class Program(NamedTuple):
    """A function of arrays whose value NumPy knows."""

    name: str
    function: Callable
    arguments: tuple[np.ndarray, ...]


class Answer(NamedTuple):
    """The largest error of a program, relative to its largest value; NaN where it is no number."""

    name: str
    by_default: float  # as XLA compiles it without options
    here: float  # as this package compiles it
    one_by_one: float  # operation by operation, as without `jit`

    @property
    def is_right(self) -> bool:
        """Whether what this package computes is right: its programs, and what it computes operation by operation."""
        return self.here <= TOLERANCE and self.one_by_one <= TOLERANCE


def normal(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Returns arrays of normal numbers, float32, always the same."""
    random = np.random.default_rng(0)
    return tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)


def product_of_product(x: Any, a: Any, b: Any) -> Any:
    return (x @ (a @ b)).max(-1)


def three_rows(x: Any) -> Any:
    matrix = jnp.eye(3, dtype=x.dtype)
    return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(x)


def of_gather(x: Any, cotangent: Any) -> Any:
    return jax.vjp(lambda x: x[:, np.arange(x.shape[1])], x)[1](cotangent)[0]


def constant_cotangent(x: Any, points: Any, weights: Any) -> Any:
    def mean(x):
        shifts = points - x[None]
        return (shifts @ weights + ((shifts @ jnp.zeros((3, 3), x.dtype)) * shifts).sum(-1)).mean()

    return jax.grad(mean)(x)


def product_with_zeros(x: Any) -> Any:
    return x[:, :64] + (x @ jnp.zeros((x.shape[1], 64), x.dtype)).max(-1, keepdims=True)


def scattered(places: Any, values: Any) -> Any:
    def add(total, of_step):
        return total.at[of_step[0]].add(of_step[1]), None

    return jax.lax.scan(add, jnp.zeros((32, values.shape[-1]), values.dtype), (places, values))[0]


def normalised_product(x: Any, a: Any, b: Any) -> Any:
    """Two linear maps, merged, and layer norm: the program that was wrong here."""
    y = x @ (a @ b)
    y = y - y.mean(-1, keepdims=True)
    return y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-12)


def programs() -> list[Program]:
    """Returns all programs; products in the widths at which blocks of columns ended wrongly, among others."""
    rows = np.zeros((32_769, 3), np.float32)
    rows[:, 0] = np.arange(len(rows))
    places = np.random.default_rng(0).integers(0, 32, (2, 16)).astype(np.int32)
    widths = {"576x64 64x64": (576, 64, 64), "1024x96 96x96": (1024, 96, 96), "600x80 80x72": (600, 80, 72)}
    products = [
        Program(f"product of a product, {name}", product_of_product, normal((128, m), (m, k), (k, n)))
        for name, (m, k, n) in widths.items()
    ]
    return [
        *products,
        Program("merged maps and layer norm", normalised_product, normal((320, 576), (576, 64), (64, 64))),
        Program("three rows reduced", three_rows, (rows,)),
        Program("arctangent of 64 numbers", jnp.arctan, (np.linspace(-4, 4, 64, dtype=np.float32),)),
        Program("gradient of a gather", of_gather, normal((256, 8, 128), (256, 8, 128))),
        Program("constant cotangent", constant_cotangent, normal((3,), (100_000, 3), (3,))),
        Program("product with zeros, reduced", product_with_zeros, normal((256, 384))),
        Program("scatter in a loop", scattered, (places, *normal((2, 16, 64)))),
    ]


def measure(program: Program) -> Answer:
    """Computes a program three ways, in `highest` precision, and compares each with NumPy in double precision."""
    with jax.default_matmul_precision("highest"):
        known = reference.evaluate(program.function, *program.arguments)
        results = (
            jax.jit(program.function)(*program.arguments),
            compiling.jit(program.function)(*program.arguments),
            program.function(*map(jnp.asarray, program.arguments)),
        )
    scale = np.abs(known).max()
    return Answer(program.name, *(float(np.abs(np.asarray(r, np.float64) - known).max() / scale) for r in results))
