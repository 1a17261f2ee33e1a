"""The one door through which programs of this package are compiled, with the options that this jaxlib needs.

`KNOWN` lists what releases of jaxlib are known to compute wrongly or slowly, and the option that avoids it. Options
are per program: no environment variable is needed, and programs of others are left alone.
"""

import functools
import os
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

import jax
from jax.extend.core import get_opaque_trace_state

JAXLIB = metadata.version("jaxlib")


class Known(NamedTuple):
    """What releases of jaxlib do wrong on a platform, and the compiler option that avoids it."""

    jaxlib: tuple[str, ...]  # their versions
    platform: str
    option: str
    value: str
    reason: str
    source: str


_WITHOUT_YNN_FUSIONS = ("xla_cpu_experimental_ynn_fusion_type", "")

KNOWN = (
    Known(
        ("0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.12.0.1"),
        "cpu",
        *_WITHOUT_YNN_FUSIONS,
        "a product with a matrix of one number, such as zeros, reads memory that nobody wrote where it is reduced",
        "findings/jaxlib_product_with_zeros.sh",
    ),
    Known(
        ("0.10.2",),
        "cpu",
        *_WITHOUT_YNN_FUSIONS,
        "products whose right factor is a product, and products that are reduced, have wrong columns",
        "jax#39103; XNNPACK d0aa6a44b9, Fix required dot tiling",
    ),
    Known(
        ("0.11.0",),
        "cpu",
        *_WITHOUT_YNN_FUSIONS,
        "some reductions of seven and more axes crash, others take twice the time",
        "jax#39257, jax#37465",
    ),
)

# XLA reads XLA_FLAGS once, when it first compiles: a later change has no effect.
FLAGS_AT_IMPORT = os.environ.get("XLA_FLAGS", "")
_TOP_LEVEL = get_opaque_trace_state(convention="nnx")


@functools.cache
def options(platform: str | None = None) -> dict[str, str]:
    """Returns the compiler options for programs on "cpu", "gpu" or "tpu", by default JAX's default platform.

    An option that this compiler does not know is left out: a flag in XLA_FLAGS would end the process.
    """
    return {known.option: known.value for known in known_here(platform) if is_known(known.option, known.value)}


def known_here(platform: str | None = None) -> list[Known]:
    """Returns what of `KNOWN` is true of this jaxlib on a platform, by default JAX's default one."""
    platform = platform or jax.default_backend()
    return [known for known in KNOWN if JAXLIB in known.jaxlib and known.platform == platform]


def reasons(platform: str | None = None) -> str:
    """Returns why programs are compiled with options here, with the source of each; "" without any."""
    here = [known for known in known_here(platform) if known.option in options(platform)]
    return "; ".join(f"jaxlib {JAXLIB}: {known.reason} ({known.source})" for known in here)


def changed_flags() -> str:
    """Returns a line where XLA_FLAGS is not what it was when JAX started, or sets an option of `KNOWN` otherwise."""
    flags = os.environ.get("XLA_FLAGS", "")
    if flags != FLAGS_AT_IMPORT:
        return f"XLA_FLAGS is {flags!r} now and was {FLAGS_AT_IMPORT!r} when JAX started: the change has no effect"
    overruled = [
        name for name, value in options().items() if f"--{name}=" in flags and f"--{name}={value} " not in f"{flags} "
    ]
    return (
        f"XLA_FLAGS sets {', '.join(overruled)}: programs of this package are compiled otherwise" if overruled else ""
    )


@functools.cache
def is_known(option: str, value: str) -> bool:
    """Returns whether the compiler of the default platform takes an option."""
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class Program:
    """A function that is compiled for each new shape of its arguments; see `jit`."""

    def __init__(self, function: Callable, platform: str | None, arguments: dict[str, Any]):
        """Keeps `function`, the platform it is for and the `arguments` of `jax.jit`; nothing is traced yet."""
        functools.update_wrapper(self, function)
        self._function, self._platform, self._arguments = function, platform, arguments
        self._inner = jax.jit(function, **arguments)

    @functools.cached_property
    def _outer(self) -> jax.stages.Wrapped:
        return jax.jit(self._function, **self._arguments, compiler_options=options(self._platform) or None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Inside another program, or under a transformation, JAX allows no options: those of the outermost count.
        is_outermost = get_opaque_trace_state(convention="nnx") == _TOP_LEVEL
        return (self._outer if is_outermost else self._inner)(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Traces and lowers for these arguments, as `jax.jit(...).lower` does; its `compile` has the options."""
        return self._outer.lower(*args, **kwargs)


def jit(function: Callable | None = None, /, *, platform: str | None = None, **arguments: Any) -> Any:
    """Returns `jax.jit(function, **arguments)`, compiled with the options that this jaxlib needs; a decorator too.

    Args:
      function: as for `jax.jit`.
      platform: "cpu", "gpu" or "tpu", of the devices it will run on; by default JAX's default platform.
      arguments: those of `jax.jit`, but `compiler_options`.
    """
    if function is None:
        return functools.partial(jit, platform=platform, **arguments)
    return Program(function, platform, arguments)
