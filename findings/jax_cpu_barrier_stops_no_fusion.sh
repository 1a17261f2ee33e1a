#!/usr/bin/env bash
# jaxlib 0.10.2, CPU: a value behind jax.lax.optimization_barrier is still fused with what reads it, and computed anew.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6; Python 3.11; x86-64 with AVX-512 (Intel Xeon).
# One would expect: the barrier keeps a value in one piece, so that it is computed once and stored for all that reads it.
# Seen: the program that JAX hands to XLA has the barrier, the compiled one has none, and multiplies by 1.5 in three
# fused loops; without the barrier in two.
# Where it is met: chains of cheap operations that several sums read, such as gradients of biases and of layer norms
# along a residual stream: each sum computes the chain again, and a barrier, which is meant for this, changes nothing.
# Output: "barriers handed to XLA: 1, left: 0", "loops that multiply by 1.5: 3 with the barrier, 2 without".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp


def compiled(keep):
    def readers(x):
        y = keep(x * 1.5)
        return y.sum(axis=0), y.sum(axis=1), y.T + 1.0, y[::-1] * 2.0

    lowered = jax.jit(readers).lower(jnp.ones((512, 24)))
    return lowered.as_text(), lowered.compile().as_text()


handed, left = compiled(jax.lax.optimization_barrier)
_, without = compiled(lambda x: x)
barriers = handed.count("optimization_barrier"), left.count("opt-barrier")
loops = [text.count("constant(1.5)") for text in (left, without)]
print(f"barriers handed to XLA: {barriers[0]}, left: {barriers[1]}")
print(f"loops that multiply by 1.5: {loops[0]} with the barrier, {loops[1]} without")
sys.exit(barriers != (1, 0) or loops != [3, 2])
PYTHON
