#!/usr/bin/env bash
# Orbax: a script that ends after `StandardCheckpointer.save` has no checkpoint, and its exit status is 0.
#
# Versions: orbax-checkpoint 0.12.8, jax and jaxlib 0.10.2; Python 3.11.
# One would expect: `save` writes in the background, and the process waits for its threads before it ends, as Python
# does for threads that are no daemons; or that a checkpoint which was not written makes the script fail.
# Seen: writing goes on when the interpreter shuts down, and cannot start what it needs: errors are logged, the folder
# keeps the name of a temporary one, and the status is 0, for arrays of a few bytes too. `wait_until_finished()` or
# `with` around the checkpointer saves it; so does `PyTreeCheckpointer`, whose `save` is synchronous.
# Where it is met: a conversion or fine-tuning script whose last line saves, after a `Checkpointer` whose `save` waited;
# in a notebook the same line works, as the process lives on.
# Output: "StandardCheckpointer: status 0, nothing", "waited for: status 0, a checkpoint", "with: status 0, a checkpoint",
# "PyTreeCheckpointer: status 0, a checkpoint".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 2>/dev/null
before='import jax.numpy as jnp, orbax.checkpoint as ocp, sys; path, tree = sys.argv[1], {"x": jnp.ones(3)}'
seen=""
run() { # TITLE, LINES
  status=0
  JAX_PLATFORMS=cpu timeout 120 "$folder/venv/bin/python" -c "$before
$2" "$folder/$1" 2>/dev/null || status=$?
  what=$([ -e "$folder/$1/_CHECKPOINT_METADATA" ] && echo "a checkpoint" || echo nothing)
  echo "$1: status $status, $what"
  seen+="$status $what;"
}
run "StandardCheckpointer" 'ocp.StandardCheckpointer().save(path, tree)'
run "waited for" 'c = ocp.StandardCheckpointer(); c.save(path, tree); c.wait_until_finished()'
run "with" 'with ocp.StandardCheckpointer() as c: c.save(path, tree)'
run "PyTreeCheckpointer" 'ocp.PyTreeCheckpointer().save(path, tree)'
[ "$seen" = "0 nothing;0 a checkpoint;0 a checkpoint;0 a checkpoint;" ]
