#!/usr/bin/env bash
# JAX on CPUs: a NumPy buffer filled again after `jnp.array(buffer)` changes the batch, and `may_alias=False` aliases it.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6; Python 3.11; x86-64.
# One would expect: `jnp.array` copies, so the buffer is the caller's again once it returns; so is an argument of a jitted
# function once the call returns; `jax.device_put(buffer, may_alias=False)` copies, as its documentation says.
# Seen: `jnp.array` copies later, in the order in which programs run: behind a training step it copies what the next batch
# has left in the buffer. Of 20 batches filled with 0 to 19 whose means are added by a slow step (190 in all) 200 to 380
# can come out; so with the buffer itself as the argument. `device_put` shares the memory of a buffer at an address that is a
# multiple of 64, for as long as the array lives, with `may_alias=False` too. `buffer.copy()` is right, and so is
# waiting for each step (`block_until_ready`), which no training loop does.
# Where it is met: readers that fill one buffer again and again (of images, of shared memory, of a ring), on a laptop; on
# a GPU the same loop can be right.
# Output: "buffer as argument: other batches", "jnp.array: other batches", "device_put, may_alias=False: other batches",
# "may_alias=False, waited for: aliased", "jnp.array, waited for: copied", "buffer.copy(): right", "each step waited for:
# right".
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


def aligned(*shape):
    """A float32 array of NumPy's at an address that is a multiple of 64."""
    size = 4 * int(np.prod(shape))
    raw = np.zeros(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + size].view(np.float32).reshape(shape)


@jax.jit
def step(total, batch):
    """Adds the mean of a batch, after as much arithmetic as a small network has."""
    y = jax.lax.fori_loop(0, 30, lambda _, y: 0.1 * jnp.tanh(y @ y.T @ y), jnp.ones((300, 300)) + 0 * total)
    return total + batch.mean() + 0 * y.sum()


def loop(given, wait=False):
    """Whether the batches that were added are those that were filled in; the worst of five times."""
    for _ in range(5):
        buffer, total = aligned(100, 32, 32, 3), jnp.float32(0)
        for value in range(20):
            buffer[:] = value
            total = step(total, given(buffer))
            total.block_until_ready() if wait else None
        if float(total) != sum(range(20)):
            return "other batches"
    return "right"


def after(given):
    """Whether an array that is there already follows its buffer."""
    buffer = aligned(100, 32, 32, 3)
    array = given(buffer).block_until_ready()
    buffer[:] = 1
    return "aliased" if float(array.mean()) else "copied"


def put(buffer):
    return jax.device_put(buffer, may_alias=False)


seen = {
    "buffer as argument": loop(lambda buffer: buffer),
    "jnp.array": loop(jnp.array),
    "device_put, may_alias=False": loop(put),
    "may_alias=False, waited for": after(put),
    "jnp.array, waited for": after(jnp.array),
    "buffer.copy()": loop(np.copy),
    "each step waited for": loop(jnp.array, wait=True),
}
for name, what in seen.items():
    print(f"{name}: {what}")
sys.exit(list(seen.values()) != ["other batches"] * 3 + ["aliased", "copied", "right", "right"])
PYTHON
