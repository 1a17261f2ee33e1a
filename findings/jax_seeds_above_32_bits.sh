#!/usr/bin/env bash
# JAX: `jax.random.key` takes seeds of 64 bits and keeps 32 of them, so seeds that differ above give the same numbers.
#
# Versions: jax and jaxlib 0.10.2, flax 0.12.8, numpy 2.4.6; Python 3.11.
# One would expect: different seeds begin different streams, or a seed that does not fit is refused, as `fold_in` and a
# jitted function do with the same Python integer.
# Seen: `key(2**32 + 1)` is `key(1)`, and every multiple of 2**32 is `key(0)`, of Python and NumPy integers and for
# `nnx.Rngs`; -1 is `key(2**32 - 1)`. With JAX_ENABLE_X64 all of them differ, so the same seed gives other numbers there.
# `fold_in(key, 2**32 + 1)` raises OverflowError, but with `np.int64(2**32 + 1)` it is that of 1.
# Where it is met: seeds packed of a run and a worker, `run << 32 | worker`, or taken from the first bytes of a hash.
# Output: "key(2**32 + 1): key(1)", "key(5 << 32): key(0)", "key(np.uint64(2**40 + 3)): key(3)", "key(-1): key(2**32 - 1)",
# "Rngs(2**32 + 1): Rngs(1)", "fold_in of a Python integer: OverflowError", "fold_in of np.int64: that of 1",
# "JAX_ENABLE_X64: differ".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import numpy as np
from flax import nnx


def same(one, other):
    return bool((jax.random.key_data(one) == jax.random.key_data(other)).all())


key = jax.random.key


def folded(data):
    try:
        return "that of 1" if same(jax.random.fold_in(key(0), data), jax.random.fold_in(key(0), 1)) else "another"
    except OverflowError:
        return "OverflowError"


def with_64_bits():
    with jax.enable_x64(True):
        return not same(key(2**32 + 1), key(1)) and not same(key(5 << 32), key(0))


seen = {
    "key(2**32 + 1)": "key(1)" if same(key(2**32 + 1), key(1)) else "another",
    "key(5 << 32)": "key(0)" if same(key(5 << 32), key(0)) else "another",
    "key(np.uint64(2**40 + 3))": "key(3)" if same(key(np.uint64(2**40 + 3)), key(3)) else "another",
    "key(-1)": "key(2**32 - 1)" if same(key(-1), key(2**32 - 1)) else "another",
    "Rngs(2**32 + 1)": "Rngs(1)" if same(nnx.Rngs(2**32 + 1).params(), nnx.Rngs(1).params()) else "another",
    "fold_in of a Python integer": folded(2**32 + 1),
    "fold_in of np.int64": folded(np.int64(2**32 + 1)),
    "JAX_ENABLE_X64": "differ" if with_64_bits() else "the same",
}
for name, what in seen.items():
    print(f"{name}: {what}")
known = ["key(1)", "key(0)", "key(3)", "key(2**32 - 1)", "Rngs(1)", "OverflowError", "that of 1", "differ"]
sys.exit(list(seen.values()) != known)
PYTHON
