#!/usr/bin/env bash
# JAX on CPUs: `precision="BF16_BF16_F32"` is accepted and computed in float32, while TF32 and float16 are refused.
#
# Versions: jax and jaxlib 0.10.2 (0.12.0 too, with Python 3.13), numpy 2.4.6; Python 3.11; x86-64 (Intel Xeon with
# AVX-512 and AMX).
# One would expect: a dot algorithm names the types that factors are rounded to, so that "BF16_BF16_F32" either rounds
# them to bfloat16 or, as for an algorithm that a device does not have, raises. JAX's guide on precision shows it so.
# Seen: with "BF16_BF16_F32", "BF16_BF16_F32_X3" and `jax.default_matmul_precision("BF16_BF16_F32")` a product of
# float32 matrices is that of "F32_F32_F32", to the last bit; "TF32_TF32_F32", "F16_F16_F32" and "BF16_BF16_BF16" raise
# ValueError "not supported by dot_general on CPU". `jax.default_matmul_precision("bfloat16")` is float32, too.
# Where it is met: a network's loss in bfloat16 products, which a TPU or GPU will have, tried on a CPU first: it shows
# the accuracy of float32, and no line says so. Factors that are rounded themselves, `x.astype(jnp.bfloat16)` with
# `preferred_element_type=jnp.float32`, give it.
# Output: "BF16_BF16_F32: float32", "BF16_BF16_F32_X3: float32", "BF16_BF16_F32 as the default: float32",
# "bfloat16 as the default: float32", "rounded factors: bfloat16", and three lines "...: refused".
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
x, y = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((256, 512), (512, 256)))


def product(x, y, **how):
    return jnp.matmul(x, y, preferred_element_type=jnp.float32, **how)


def by_default(name):
    with jax.default_matmul_precision(name):
        return jax.jit(product)(x, y)


def precision(name):
    return jax.jit(lambda x, y: product(x, y, precision=name))(x, y)


rounded = [z.astype(jnp.bfloat16) for z in (x, y)]
exact = np.asarray(x, float) @ np.asarray(y, float)
of_rounded = np.asarray(rounded[0], float) @ np.asarray(rounded[1], float)
float32 = np.asarray(precision("F32_F32_F32"))


def said(compute):
    try:
        found = np.asarray(compute())
    except ValueError:
        return "refused"
    if (found == float32).all():
        return "float32"
    return "bfloat16" if np.abs(found - of_rounded).max() < np.abs(found - exact).max() / 100 else "neither"


seen = {
    "BF16_BF16_F32": said(lambda: precision("BF16_BF16_F32")),
    "BF16_BF16_F32_X3": said(lambda: precision("BF16_BF16_F32_X3")),
    "BF16_BF16_F32 as the default": said(lambda: by_default("BF16_BF16_F32")),
    "bfloat16 as the default": said(lambda: by_default("bfloat16")),
    "rounded factors": said(lambda: jax.jit(product)(*rounded)),
    "TF32_TF32_F32": said(lambda: precision("TF32_TF32_F32")),
    "F16_F16_F32": said(lambda: precision("F16_F16_F32")),
    "BF16_BF16_BF16": said(lambda: precision("BF16_BF16_BF16")),
}
for name, how in seen.items():
    print(f"{name}: {how}")
sys.exit(list(seen.values()) != ["float32"] * 4 + ["bfloat16"] + ["refused"] * 3)
PYTHON
