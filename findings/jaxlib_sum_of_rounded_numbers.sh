#!/usr/bin/env bash
# jaxlib 0.10.2 to 0.12.0, CPU: jitted sums, means and softmaxes do not see that their input was rounded to bfloat16.
#
# Versions: jax and jaxlib 0.10.2 (0.11.2 and 0.12.0 too, with Python 3.13), numpy 2.4.6; Python 3.11; x86-64 with AVX2
# (AMD EPYC, Zen 3).
# One would expect: `x.astype(bfloat16).astype(float32)` keeps eight bits under `jax.jit` as it does without; or, for
# who knows of excess precision, that xla_allow_excess_precision=False brings them back, as it does for a maximum.
# Seen: sums, sums of squares, means and a softmax are those of the unrounded numbers, to the last bit or nearly, with
# the option and without. Products, exponentials and the rounded numbers themselves are right, so that looking at what
# was rounded shows nothing. Rounding to float16, `lax.reduce_precision(x, 8, 7)`, and
# xla_cpu_experimental_ynn_fusion_type="" are right. jaxlib 0.10.0 and 0.10.1 round as they are told.
# Where it is met: layers simulated in bfloat16 on a CPU, quantization studied by its effect on a loss, losses compared
# with those of a device that rounds.
# Output: "sum", "mean", "softmax", "sum, no excess precision": unrounded; "maximum, no excess precision", "numbers",
# "product", "float16", "reduce_precision", "fusions off": rounded.
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
x = random.normal(size=(64, 64)).astype(np.float32)
weights = random.normal(size=(64, 64)).astype(np.float32)


def to(dtype):
    return lambda x: x.astype(dtype).astype(jnp.float32)


def result(function, rounding=to(jnp.bfloat16), **options):
    """Whether a jitted function of rounded numbers is nearer to that of rounded or of unrounded ones."""
    jitted = jax.jit(lambda x: function(rounding(x)), compiler_options=options or None)
    found, rounded, unrounded = (np.asarray(y, np.float64) for y in (jitted(x), function(rounding(x)), function(x)))
    near, far = np.abs(found - rounded).max(), np.abs(found - unrounded).max()
    return "rounded" if near < far / 10 else "unrounded" if far < near / 10 else "neither"


def add(x):
    return jnp.asarray(x).sum(axis=0)


exactly, plain = {"xla_allow_excess_precision": False}, {"xla_cpu_experimental_ynn_fusion_type": ""}
seen = {
    "sum": result(add),
    "mean": result(lambda x: jnp.asarray(x).mean()),
    "softmax": result(jax.nn.softmax),
    "sum, no excess precision": result(add, **exactly),
    "maximum, no excess precision": result(lambda x: jnp.asarray(x).max(axis=0), **exactly),
    "numbers": result(jnp.asarray),
    "product": result(lambda x: x @ weights),
    "float16": result(add, to(jnp.float16)),
    "reduce_precision": result(add, lambda x: jax.lax.reduce_precision(x, 8, 7)),
    "fusions off": result(add, **plain),
}
for name, how in seen.items():
    print(f"{name}: {how}")
sys.exit(list(seen.values()) != ["unrounded"] * 4 + ["rounded"] * 6)
PYTHON
