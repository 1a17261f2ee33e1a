#!/usr/bin/env bash
# Orbax: a checkpoint is restored into integers with its fractions cut off, and into a NumPy array of another shape.
#
# Versions: orbax-checkpoint 0.12.8, jax and jaxlib 0.10.2, numpy 2.4.6; Python 3.11.
# One would expect: `StandardCheckpointer.restore(path, target)` refuses a target whose types or shapes are not those that were
# saved, as it does where the target is a JAX array of another shape.
# Seen: types are those of the target, whatever it costs: 0.7, 1.9, -2.5 come back as 0, 1, -2 in int8, as True in bool, and 3e38
# as infinity in float16. A shape is compared where the target is a `jax.Array` alone (or a `ShapeDtypeStruct` of what was saved as
# one): into `np.zeros(2)` three numbers are restored, as an array of three. No error, no warning.
# Where it is met: a training state whose skeleton is made by NumPy, or that was changed since (another number of
# classes; quantised weights; a mask that became boolean): training goes on with other numbers.
# Output: a line for each target: "int8: [0, 1, -2]", "bool: [True, True, True]", "float16 of 3e38: inf", "NumPy of shape (2,): 3
# numbers", "NumPy of shape (5,): 3 numbers", "JAX of shape (2,): ValueError".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import sys

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

folder, seen = sys.argv[1], {}
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(f"{folder}/small", {"w": jnp.array([0.7, 1.9, -2.5], jnp.float32)})
    checkpointer.save(f"{folder}/large", {"w": jnp.array([3e38], jnp.float32)})
    checkpointer.wait_until_finished()

    def restored(name, target):
        try:
            return checkpointer.restore(f"{folder}/{name}", {"w": target})["w"]
        except ValueError as error:
            return type(error).__name__

    seen["int8"] = restored("small", jnp.zeros(3, jnp.int8)).tolist()
    seen["bool"] = restored("small", jnp.zeros(3, bool)).tolist()
    seen["float16 of 3e38"] = float(restored("large", jnp.zeros(1, jnp.float16))[0])
    for size in (2, 5):
        seen[f"NumPy of shape ({size},)"] = f"{len(restored('small', np.zeros(size, np.float32)))} numbers"
    seen["JAX of shape (2,)"] = restored("small", jnp.zeros(2, jnp.float32))
for name, what in seen.items():
    print(f"{name}: {what}")
expected = [[0, 1, -2], [True] * 3, float("inf"), "3 numbers", "3 numbers", "ValueError"]
sys.exit(list(seen.values()) != expected)
PYTHON
