#!/usr/bin/env bash
# JAX: `jax.jit(f, compiler_options=...)` works alone and under `vmap`, and is refused inside `jit` and under `grad`.
#
# Versions: jax 0.10.2, jaxlib 0.10.2, flax not needed; Python 3.11.
# One would expect: a library function decorated with `jax.jit(compiler_options=...)` can be called and differentiated
# like any jitted function, its options ignored or passed on where another program contains it.
# Seen: a ValueError at tracing time, "can only be passed to top-level `jax.jit`", under `jax.jit`, `jax.grad` and
# `jax.make_jaxpr`; none under an eager `jax.vmap`. So options belong to whoever makes the outermost program. An unknown
# option is a JaxRuntimeError that can be caught, while an unknown flag in XLA_FLAGS ends the process.
# Output: "alone: ok", "vmap: ok", "jit: ValueError", "grad: ValueError", "unknown option: JaxRuntimeError".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp

f = jax.jit(lambda x: (x * x).sum(), compiler_options={"xla_backend_optimization_level": "1"})
x = jnp.arange(3.0)
cases = {
    "alone": lambda: f(x),
    "vmap": lambda: jax.vmap(f)(x[None]),
    "jit": lambda: jax.jit(lambda x: f(x) + 1)(x),
    "grad": lambda: jax.grad(f)(x),
    "unknown option": lambda: jax.jit(lambda x: x, compiler_options={"xla_no_such_option": "1"})(x),
}
seen = {}
for name, case in cases.items():
    try:
        case()
        seen[name] = "ok"
    except Exception as error:
        seen[name] = type(error).__name__
    print(f"{name}: {seen[name]}")
expected = ["ok", "ok", "ValueError", "ValueError", "JaxRuntimeError"]
sys.exit(list(seen.values()) != expected)
PYTHON
