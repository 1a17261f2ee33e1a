#!/usr/bin/env bash
# jax.export: `jax.jit(f, compiler_options=...)` is exported without its options, and the reader's defaults compile it.
#
# Versions: jax and jaxlib 0.10.2, flatbuffers 25.12.19, numpy 2.4.6; Python 3.11; x86-64 with AVX2 (AMD EPYC, Zen 3).
# One would expect: an exported function computes as the jitted one that it was made of; options that change its numbers
# are kept, or `export` refuses or warns, as tracing inside another program refuses them.
# Seen: the file holds the operations alone. A product with zeros, which this jaxlib computes wrongly by default on this
# processor (jaxlib_product_with_zeros.sh), is right as `jax.jit(f, compiler_options=...)` and NaN, or of any size, once it
# is exported and read back in the same process. `Exported` has no field for options. Whoever reads the file has to know
# them, and to jit its `call` with them.
# Where it is met: networks that were checked with options (fusions off, precision, determinism on GPUs) and then handed
# on as StableHLO.
# Output: "jitted with options: right", "exported: wrong", "its call jitted with options: right", "fields for options: none".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 flatbuffers==25.12.19 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

s = np.random.default_rng(0).normal(size=(256, 384)).astype(np.float32)
options = {"xla_cpu_experimental_ynn_fusion_type": ""}


def silent(s):
    """A product with zeros, summed."""
    return (s @ jnp.zeros((384, 64))).sum(0)


def is_zero(result):
    return "right" if not np.asarray(result).any() else "wrong"


jitted = jax.jit(silent, compiler_options=options)
file = export.export(jitted)(jax.ShapeDtypeStruct(s.shape, s.dtype)).serialize()
read = export.deserialize(file)
seen = {
    "jitted with options": is_zero(jitted(s)),
    "exported": is_zero(read.call(s)),
    "its call jitted with options": is_zero(jax.jit(read.call, compiler_options=options)(s)),
    "fields for options": ", ".join(name for name in dir(read) if "option" in name) or "none",
}
for name, what in seen.items():
    print(f"{name}: {what}")
sys.exit(list(seen.values()) != ["right", "wrong", "right", "none"])
PYTHON
