#!/usr/bin/env bash
# jaxlib, CPU: a sum over a large array is rounded otherwise on another number of cores, so training is not repeated.
#
# Versions: jax and jaxlib 0.10.2 (0.10.0: the gradient alone), numpy 2.4.6; Python 3.11; x86-64 (AMD EPYC, Zen 3).
# One would expect: one program, one processor, one jaxlib: the same bits; the number of threads changes the time alone,
# or, as in a BLAS, products.
# Seen: XLA divides a sum among the cores that the process may use, and adds the parts: `jnp.sum` of 3.2 million numbers
# and the gradient of a map over 200,000 rows have other last bits on one core than on two, the same in each process of
# one kind. Small products, softmax and sums of short rows are equal. Affinity counts (`taskset`, a container's set of
# CPUs), and so do the variables PJRT_NPROC and NPROC, of which this script sets one.
# Where it is met: "bit for bit" checks and golden numbers that pass on a workstation and fail in CI on two cores; a run
# that is resumed in a container of another size.
# Output: "sum: differs", "sum, twice on two: equal", "gradient of a map: differs", "product: equal", "softmax: equal",
# "sums of rows: equal".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
version=${JAXLIB:-0.10.2}
"$folder/venv/bin/pip" install -q "jax==$version" "jaxlib==$version" numpy==2.4.6 2>/dev/null
cat >"$folder/digests.py" <<'PYTHON'
import hashlib

import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(0)
long, left, right = (random.normal(size=size).astype(np.float32) for size in ((16, 200_000), (256, 384), (384, 384)))
gradient = random.normal(size=(200_000, 16)).astype(np.float32)

for name, function, arguments in (
    ("sum", jnp.sum, (long,)),
    ("gradient of a map", lambda x, gradient: x.T @ gradient, (long.T, gradient)),
    ("product", jnp.matmul, (left, right)),
    ("softmax", jax.nn.softmax, (left,)),
    ("sums of rows", lambda x: x.sum(1), (left,)),
):
    print(name, hashlib.sha256(np.asarray(jax.jit(function)(*arguments)).tobytes()).hexdigest(), sep=": ")
PYTHON
for cores in 1 2 2; do
  JAX_PLATFORMS=cpu PJRT_NPROC=$cores "$folder/venv/bin/python" "$folder/digests.py"
done >"$folder/seen"
"$folder/venv/bin/python" - "$folder/seen" <<'PYTHON'
import pathlib
import sys

lines = [line.split(": ") for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
one, two, again = (dict(lines[n : n + 5]) for n in (0, 5, 10))
seen = {name: "equal" if one[name] == two[name] else "differs" for name in one}
seen["sum, twice on two"] = "equal" if two == again else "differs"
for name, what in seen.items():
    print(f"{name}: {what}")
expected = dict.fromkeys(seen, "equal") | {"sum": "differs", "gradient of a map": "differs"}
sys.exit(seen != expected)
PYTHON
