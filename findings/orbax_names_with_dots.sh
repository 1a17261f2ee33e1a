#!/usr/bin/env bash
# Orbax: two arrays of a tree, "a.b" and "a" -> "b", are stored under one name, and both come back as one of them.
#
# Versions: orbax-checkpoint 0.12.8, jax and jaxlib 0.10.2; Python 3.11.
# One would expect: what is saved is what is restored, whatever dictionary keys hold, or saving is refused. Names with
# dots come back as they were, and so do names with slashes.
# Seen: an array is stored under the keys on the way to it, joined by dots. Where a tree has a key with a dot beside the
# path that reads the same, one array replaces the other without a word: with and without a target at restoring, of
# `StandardCheckpointer` and of `PyTreeCheckpointer`. Only arrays of two shapes are refused, at saving. With "/" in the
# place of the dot both arrays are right.
# Where it is met: a PyTorch state dictionary, whose names have dots, kept beside modules of Flax in one tree.
# Output: "dot, StandardCheckpointer: one for both", "dot, with a target: one for both", "dot, PyTreeCheckpointer: one for
# both", "another shape: ValueError", "slash: right", "dots alone: right".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - "$folder" <<'PYTHON' 2>/dev/null
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

root = pathlib.Path(sys.argv[1])


def restored(name, tree, target=False, checkpointer=ocp.StandardCheckpointer):
    """What became of a tree that was saved and restored."""
    with checkpointer() as it:
        try:
            it.save(root / name, tree)
            if hasattr(it, "wait_until_finished"):
                it.wait_until_finished()
        except ValueError as error:
            return type(error).__name__
        abstract = (jax.tree.map(ocp.utils.to_shape_dtype_struct, tree),) if target else ()
        found = it.restore(root / name, *abstract)
    before, after = jax.tree.leaves(tree), jax.tree.leaves(found)
    if all(np.array_equal(x, y) for x, y in zip(before, after, strict=True)):
        return "right"
    return "one for both" if all(np.array_equal(x, after[0]) for x in after) else "other numbers"


first, second = jnp.zeros(3), jnp.ones(3)
seen = {
    "dot, StandardCheckpointer": restored("a", {"norm.scale": first, "norm": {"scale": second}}),
    "dot, with a target": restored("b", {"norm.scale": first, "norm": {"scale": second}}, target=True),
    "dot, PyTreeCheckpointer": restored(
        "c", {"norm.scale": first, "norm": {"scale": second}}, checkpointer=ocp.PyTreeCheckpointer
    ),
    "another shape": restored("d", {"norm.scale": jnp.zeros((2, 2)), "norm": {"scale": second}}),
    "slash": restored("e", {"norm/scale": first, "norm": {"scale": second}}),
    "dots alone": restored("f", {"norm.scale": first, "norm.bias": second}),
}
for name, what in seen.items():
    print(f"{name}: {what}")
sys.exit(list(seen.values()) != ["one for both"] * 3 + ["ValueError"] + ["right"] * 2)
PYTHON
