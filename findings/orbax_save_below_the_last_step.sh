#!/usr/bin/env bash
# Orbax: `CheckpointManager.save` of a step that is not above the last one saves nothing, without an error or a warning.
#
# Versions: orbax-checkpoint 0.12.8, jax and jaxlib 0.10.2; Python 3.11.
# One would expect: `save` saves, or raises, as it does with `StepAlreadyExistsError` for a step that exists where `force=True`.
# Seen: in a folder with step 100 the steps 10, 20 and 100 are not saved; `save` returns False, as it does
# for steps between those of `save_interval_steps`. No warning. `force=True` saves 10, and this manager then has 10 as its
# latest step, so that with `max_to_keep=2` a forced 20 removes 100. A manager that opens the folder between has 100 as its latest.
# Where it is met: a training begun anew in the folder of an older one, which saves nothing until it is longer, after which
# `restore` gives the network of the older; or one set back to an earlier step after it diverged.
# Output: "10, 20, 100 again: saved False False False, latest 100", "forced 10: latest 10, opened anew 100",
# "forced 20, two kept: 10 20".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - "$folder/checkpoints" <<'PYTHON' 2>/dev/null
import sys

import numpy as np
import orbax.checkpoint as ocp


def opened():
    return ocp.CheckpointManager(sys.argv[1], options=ocp.CheckpointManagerOptions(max_to_keep=2))


def save(manager, step, **options):
    saved = manager.save(step, args=ocp.args.StandardSave({"x": np.full(2, float(step))}), **options)
    manager.wait_until_finished()
    return saved


with opened() as first:
    save(first, 100)
seen = []
with opened() as again:
    saved = [save(again, step) for step in (10, 20, 100)]
    seen.append(f"10, 20, 100 again: saved {' '.join(map(str, saved))}, latest {again.latest_step()}")
    save(again, 10, force=True)
    with opened() as other:
        seen.append(f"forced 10: latest {again.latest_step()}, opened anew {other.latest_step()}")
    save(again, 20, force=True)
    seen.append(f"forced 20, two kept: {' '.join(map(str, sorted(again.all_steps())))}")
print("\n".join(seen))
sys.exit(
    seen
    != [
        "10, 20, 100 again: saved False False False, latest 100",
        "forced 10: latest 10, opened anew 100",
        "forced 20, two kept: 10 20",
    ]
)
PYTHON
