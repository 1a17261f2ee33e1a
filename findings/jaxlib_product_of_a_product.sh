#!/usr/bin/env bash
# jaxlib 0.10.2, CPU: a jitted product whose right factor is itself a product has wrong columns, without NaN or warning.
#
# Versions: jax 0.10.2, jaxlib 0.10.2, numpy 2.4.6; Python 3.11; x86-64 with AVX2 and without AVX-512 (AMD EPYC, Zen 3).
# One would expect: `(x @ (a @ b)).max(-1)` under `jax.jit` equals the same without `jit`, to rounding.
# Seen: with a of 576x64 and b of 64x64 the results differ by 44% of the largest value; with a of 576x128 and b of
# 128x128 by rounding alone. `precision="highest"` and `lax.optimization_barrier` around `a @ b` change nothing;
# the compiler option xla_cpu_experimental_ynn_fusion_type="" does. jaxlib 0.10.0 and 0.11.0 to 0.12.0 are right.
# Upstream: XNNPACK d0aa6a44b9 "Fix required dot tiling", two days after this release. Which widths are wrong depends on
# the vectors of the processor: with AVX-512 these can be right, and this script then says so and exits with 2.
# Output: "576x64: 4.4e-01", "576x64, highest: 3.1e-01", "576x64, barrier: 4.3e-01", "576x64, option: 2.3e-07",
# "576x128: 6.0e-07".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(0)
option = {"xla_cpu_experimental_ynn_fusion_type": ""}


def error(width, function=lambda x, a, b: (x @ (a @ b)).max(-1), **how):
    x, a, b = (random.normal(size=s).astype(np.float32) for s in ((128, 576), (576, width), (width, width)))
    known = (x.astype(float) @ (a.astype(float) @ b)).max(-1)
    return np.abs(jax.jit(function, **how)(x, a, b) - known).max() / np.abs(known).max()


def highest(x, a, b):
    with jax.default_matmul_precision("highest"):
        return (x @ (a @ b)).max(-1)


errors = {
    "576x64": error(64),
    "576x64, highest": error(64, highest),
    "576x64, barrier": error(64, lambda x, a, b: (x @ jax.lax.optimization_barrier(a @ b)).max(-1)),
    "576x64, option": error(64, compiler_options=option),
    "576x128": error(128),
}
for name, value in errors.items():
    print(f"{name}: {value:.1e}")
wrong = [name for name, value in errors.items() if value > 1e-3]
if not wrong:
    print("this processor does not show it")
    sys.exit(2)
sys.exit(wrong != ["576x64", "576x64, highest", "576x64, barrier"])
PYTHON
