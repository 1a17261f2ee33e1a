#!/usr/bin/env bash
# JAX on CPUs: a NumPy view of an array, looked at once and kept, silently undoes its donation; the array stays alive.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6; Python 3.11; x86-64.
# One would expect: with `donate_argnums` an argument is gone after the call (`is_deleted()`), its memory that of the result, and
# a donation that cannot be used warns ("Some donated buffers were not usable"), as it does where shapes do not fit.
# Seen: `np.asarray(array)` shares the memory of the array and, while the view lives, donation is left out: the result has
# other memory, the argument is not deleted. No warning. Once the view is gone, donation works. So a step takes twice the
# memory for as long as a log, a list of histories or a debugger keeps a view.
# Where it is met: a training loop that keeps `np.asarray(state.parameters[...])` of some step for a figure. Tests
# that expect a donated state to be deleted pass or fail by what was looked at before. Not tried on GPUs.
# Output: "no view: deleted, memory reused", "view kept: not deleted, new memory, no warning", "view dropped: deleted, memory
# reused".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

add = jax.jit(lambda x: x + 1, donate_argnums=0)


def donated(look):
    """What becomes of an argument that `look` has looked at."""
    x = jnp.zeros(1_000_000).block_until_ready()
    kept = look(x)
    before = x.unsafe_buffer_pointer()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y = add(x).block_until_ready()
    words = "deleted, " if x.is_deleted() else "not deleted, "
    words += "memory reused" if y.unsafe_buffer_pointer() == before else "new memory"
    del kept
    return words + (", no warning" if "new" in words and not said else "")


seen = {
    "no view": donated(lambda x: None),
    "view kept": donated(np.asarray),
    "view dropped": donated(lambda x: float(np.asarray(x).sum())),
}
for name, what in seen.items():
    print(f"{name}: {what}")
reused = "deleted, memory reused"
sys.exit(list(seen.values()) != [reused, "not deleted, new memory, no warning", reused])
PYTHON
