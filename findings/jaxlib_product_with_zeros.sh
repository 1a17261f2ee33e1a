#!/usr/bin/env bash
# jaxlib 0.10.2 to 0.12.0.1, CPU: a jitted product with a matrix of one number, reduced, is NaN or 1e36 without warning.
#
# Versions: jax and jaxlib 0.10.2 (0.11.0, 0.11.1, 0.11.2, 0.12.0 and 0.12.0.1 too, with a newer Python), numpy 2.4.6;
# Python 3.11; x86-64 with AVX2 (AMD EPYC, Zen 3).
# One would expect: `(s @ jnp.zeros((384, 64))).sum(0)` is zero under `jax.jit`, as it is without; with ones it is a sum.
# Seen: NaN or numbers of any size, other ones after each compilation, as if memory were read that nobody wrote. So is
# the product with `jnp.full(shape, v)` of an argument v, and `max`, `mean` or a softmax in the place of the sum. With the
# same zeros as an argument, as any other constant, as a product that is not reduced, and with 8 rows it is right, as
# with the compiler option xla_cpu_experimental_ynn_fusion_type="". jaxlib 0.10.0 and 0.10.1 are right.
# Where it is met: layers that start as zero, or an average as a product with ones, closed over rather than passed.
# Output: "zeros: wrong", "ones: wrong", "full: wrong", "zeros as an argument: right", "not reduced: right",
# "another constant: right", "option: right".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
version=${JAXLIB:-0.10.2}
"$folder/venv/bin/pip" install -q "jax==$version" "jaxlib==$version" numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(0)
s = random.normal(size=(256, 384)).astype(np.float32)
other = random.normal(size=(384, 64)).astype(np.float32)
zeros, shape = np.zeros((384, 64), np.float32), (384, 64)


def is_right(function, known, *arguments, **how):
    result = np.asarray(jax.jit(function, **how)(s, *arguments), np.float64)
    return bool(np.abs(result - known).max() < 1e-2)


total = np.full(64, s.astype(float).sum())
without = {"xla_cpu_experimental_ynn_fusion_type": ""}
seen = {
    "zeros": is_right(lambda s: (s @ jnp.zeros(shape)).sum(0), 0),
    "ones": is_right(lambda s: (s @ jnp.ones(shape)).sum(0), total),
    "full": is_right(lambda s, v: (s @ jnp.full(shape, v)).sum(0), total, np.float32(1)),
    "zeros as an argument": is_right(lambda s, z: (s @ z).sum(0), 0, zeros),
    "not reduced": is_right(lambda s: s @ jnp.zeros(shape), 0),
    "another constant": is_right(lambda s: (s @ other).sum(0), (s.astype(float) @ other).sum(0)),
    "option": is_right(lambda s: (s @ jnp.zeros(shape)).sum(0), 0, compiler_options=without),
}
for name, right in seen.items():
    print(f"{name}: {'right' if right else 'wrong'}")
sys.exit(list(seen.values()) != [False, False, False, True, True, True, True])
PYTHON
