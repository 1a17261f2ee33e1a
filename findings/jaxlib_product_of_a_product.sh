#!/usr/bin/env bash
# jaxlib 0.10.2, CPU: a jitted product whose right factor is itself a product has wrong columns, without NaN or warning.
#
# Versions: jax 0.10.2, jaxlib 0.10.2, numpy 2.4.6; Python 3.11; x86-64 with AVX-512 (Intel Xeon). With AVX2 alone
# (AMD EPYC, Zen 3) this script was run with 64 columns in the place of 80, wrong there, and not with 80.
# One would expect: `(x @ (a @ b)).max(-1)` under `jax.jit` equals the same without `jit`, to rounding.
# Seen: with a of 576x80 and b of 80x80 the results differ by 30 to 50% of the largest value; with a of 576x128 and b of
# 128x128 by rounding alone. `precision="highest"` and `lax.optimization_barrier` around `a @ b` change nothing;
# the compiler option xla_cpu_experimental_ynn_fusion_type="" does. jaxlib 0.10.0 and 0.11.0 to 0.12.0 are right.
# Upstream: XNNPACK d0aa6a44b9 "Fix required dot tiling", two days after this release. Which widths are wrong depends on
# the vectors of the processor and on the rows of a: with AVX2 alone 63 to 96 columns at 513 to 1024
# rows; with AVX-512 65 to 104 at 513 to 1024 rows, 88 to 150 at 400, 129 to 176 at 256, 47 and 48 at 800 to 2048, while
# 63 and 64 are right. So a test that passes on one processor says nothing of another.
# Output (AVX-512): "576x80: 4.3e-01", "576x80, highest: 3.8e-01", "576x80, barrier: 3.2e-01", "576x80, option: 3.8e-07",
# "576x128: 6.1e-07".
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
    "576x80": error(80),
    "576x80, highest": error(80, highest),
    "576x80, barrier": error(80, lambda x, a, b: (x @ jax.lax.optimization_barrier(a @ b)).max(-1)),
    "576x80, option": error(80, compiler_options=option),
    "576x128": error(128),
}
for name, value in errors.items():
    print(f"{name}: {value:.1e}")
wrong = [name for name, value in errors.items() if value > 1e-3]
sys.exit(wrong != ["576x80", "576x80, highest", "576x80, barrier"])
PYTHON
