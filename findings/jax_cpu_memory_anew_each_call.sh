#!/usr/bin/env bash
# JAX: on a CPU a compiled program takes its temporary memory from the system anew in every call, page by page.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6, on the CPU under Linux (glibc 2.36), pages of 4 KiB; Python 3.11.
# One would expect: as on GPUs, where JAX keeps its pool, that the second call of a program finds the memory of the first,
# so that a step per call costs no more than many steps in a loop.
# Seen: XLA asks malloc for the program's temporary memory in each call and frees it after. Above 32 MiB glibc maps and
# unmaps it each time, so that every call has one page fault for each page of `memory_analysis().temp_size_in_bytes`. A loop
# of eight inside the program has as many as a loop of one.
# Where it is met: a ResNet that takes one training step per call, of 100 images, spent a tenth of its CPU time in the kernel.
# Large pages (glibc.malloc.hugetlb=1 in GLIBC_TUNABLES where the system says "madvise") make the faults few.
# Output: page faults of each call in units of the program's temporary pages, rounded to hundredths.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
cat >"$folder/faults.py" <<'PYTHON'
import ctypes
from resource import RUSAGE_SELF, getpagesize, getrusage

import jax
import jax.numpy as jnp

PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # so that a fault is a page, whatever the system prefers


def middle(x):
    return ((x @ jnp.ones((16, 16))) @ jnp.ones((16, 1))).sum()


def repeated(x, count):
    return jax.lax.fori_loop(0, count, lambda _, total: middle(x + total), jnp.float32(0))


def faults_of_calls(program, *calls):
    pages = program.memory_analysis().temp_size_in_bytes / getpagesize()
    jax.block_until_ready(program(*calls[0]))
    found = []
    for arguments in calls:
        before = getrusage(RUSAGE_SELF).ru_minflt
        jax.block_until_ready(program(*arguments))
        found.append((getrusage(RUSAGE_SELF).ru_minflt - before) / pages)
    return " ".join(f"{each:.2f}" for each in found)


x, one, eight = jnp.ones((2**20, 16)), jnp.int32(1), jnp.int32(8)
print("one step per call, four calls:", faults_of_calls(jax.jit(middle).lower(x).compile(), *[(x,)] * 4))
print("loops of 1, 8, 1 and 8 steps:", faults_of_calls(jax.jit(repeated).lower(x, one).compile(), *[(x, one), (x, eight)] * 2))
PYTHON
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/faults.py" 2>/dev/null | tee "$folder/output"
diff "$folder/output" - >/dev/null <<'EXPECTED'
one step per call, four calls: 1.00 1.00 1.00 1.00
loops of 1, 8, 1 and 8 steps: 1.00 1.00 1.00 1.00
EXPECTED
